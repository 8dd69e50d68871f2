"""Any number of classes for each picture, by folders: one that lies in several class folders has all of their classes.

DATA/train/cat/7.jpg and DATA/train/dog/7.jpg are one picture of both; so without train, and then a share is held out.
"""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from vitreous.data.image import SUFFIXES
from vitreous.data.image_set import NAMES_OF_SPLITS, ImageSet, Subset, digest, file_bytes
from vitreous.data.layouts import flat_folder, folder
from vitreous.data.layouts.base import Layout, Request, expanded
from vitreous.errors import InputError

_KINDS = (flat_folder.LAYOUT, folder.LAYOUT)


class FolderLabelSets(Subset):
    """Pictures of class folders, those of one name in several folders as one."""

    def __init__(self, images: ImageSet) -> None:
        self.labels: dict[str, list[int]] = {}  # path below a class folder -> labels
        first: dict[str, int] = {}
        for index in range(len(images)):
            label = images.target(index)["labels"]
            path = images.name(index).partition(f"{images.classes[label]}/")[2]
            self.labels.setdefault(path, []).append(label)
            _require_same(images, first.setdefault(path, index), index)
        super().__init__(images, list(first.values()))
        self._paths = list(first)

    def target(self, index: int) -> dict[str, Any]:
        return {"label_set": tuple(self.labels[self._paths[index]])}

    @property
    def fingerprint(self) -> str:
        return f"{self.images.fingerprint} as sets ({digest(self._paths)[:12]})"


def _require_same(images: ImageSet, first: int, second: int) -> None:
    """Files of one name are to be copies; their lengths tell."""
    files = [Path(str(images.encoded(index))) for index in (first, second)]
    if len({file_bytes(file) for file in files}) > 1:
        raise InputError(
            f"'{files[0]}' and '{files[1]}' have one name, which makes them one picture of two classes, but differ; "
            "rename one of them"
        )


def _kind(data: str) -> Layout | None:
    return next((layout for layout in _KINDS if layout.recognises(data)), None)


def _splits(data: str) -> Collection[str] | None:
    """Only where some picture is in several folders: of others, every picture has one class."""
    found, root = _kind(data), expanded(data)
    if found is None:
        return None
    splits = found.splits(data) or ()
    roots = [root / name for name in splits if name in NAMES_OF_SPLITS] or [root]
    return splits if any(map(shares_pictures, roots)) else None


def shares_pictures(root: Path) -> bool:
    """Whether a name is in two class folders; the search ends at the first."""
    seen: set[str] = set()
    for folder_name in folder.class_folders(root):
        names = {entry.name for entry in os.scandir(root / folder_name) if entry.name.lower().endswith(SUFFIXES)}
        if seen & names:
            return True
        seen |= names
    return False


def open_label_folders(request: Request) -> FolderLabelSets:
    found = _kind(request.data)
    if found is None:
        raise InputError(
            f"'{request.data}' has no class folders; accepted: {_KINDS[0].example}, or {_KINDS[1].example}"
        )
    return FolderLabelSets(found.open_split(request))


LAYOUT = Layout(
    name="class folders that share pictures",
    example="DIR/train/<class>/*.jpg (the same with val) or DIR/<class>/*.jpg, with a picture in several folders",
    splits=_splits,
    open_split=open_label_folders,
    targets=("label_sets",),
    order=150,  # after class folders, which these are too
)
