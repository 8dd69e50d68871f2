"""Images sorted into one folder per class, without splits: `DATA/cat/1.jpg`, `DATA/dog/7.jpg`.

Which of them are held out for validation is decided in `held_out`.
"""

import re
from pathlib import Path

from vitreous.data.image_set import holds_pictures
from vitreous.data.layouts.base import Layout, expanded
from vitreous.data.layouts.folder import (
    MASKS_FOLDER,
    PICTURE_FOLDERS,
    ClassFolder,
    class_folders,
    class_names,
    split_folders,
)

# Splits under another name are no classes.
SPLIT_LIKE = re.compile(r"(train(ing)?|val(id(ation)?)?|test(ing)?|dev|eval)([^a-z].*)?", re.IGNORECASE)


class FlatFolder(ClassFolder):
    """All images; classes are the sorted names of the folders."""

    def __init__(self, root: Path, *, strict: bool = True) -> None:
        """`strict` refuses classes without images."""
        self.folder, self.classes = root, class_names(root)
        self._find_files(strict)
        self._find_masks(root / MASKS_FOLDER, strict)

    def name(self, index: int) -> str:
        return self.files[index][0]


def is_flat(root: Path) -> bool:
    """At least two folders, most of them with pictures, none of which is a split or a part of another layout."""
    names = class_folders(root)
    if len(names) < 2 or PICTURE_FOLDERS & {name.lower() for name in names}:
        return False
    splits = [name for name in names if SPLIT_LIKE.fullmatch(name)]
    if splits and not _class_of_trains(root, splits, names):
        return False
    filled = sum(holds_pictures(root / name) for name in names)
    return filled >= 2 and 2 * filled > len(names)


def _class_of_trains(root: Path, splits: list[str], names: list[str]) -> bool:
    """A train is also a vehicle: a folder of that name among several, with nothing but pictures, is a class."""
    only = splits[0]
    return (
        [name.lower() for name in splits] == ["train"]
        and len(names) > 2
        and not split_folders(root / only)
        and holds_pictures(root / only, deeper=False)
    )


LAYOUT = Layout(
    name="class folders without splits",
    example="DIR/<class>/*.jpg, of which a share is held out for validation",
    splits=lambda data: () if is_flat(expanded(data)) else None,
    open_split=lambda request: FlatFolder(request.path, strict=request.strict),
    order=130,  # late: any folder of folders with pictures looks like this
)
