"""Images sorted into one folder per class: `DATA/train/cat/1.jpg`, `DATA/val/cat/7.jpg`.

`DATA/masks/train/cat/1.png`, if it is there, shows where in the first of them the cat is: 0 is the background, 255 a
border that belongs to nothing, every other value the object.
"""

import os
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL import Image

from vitreous.data.image import SUFFIXES, ImageError
from vitreous.data.image_set import (
    NAMES_OF_SPLITS,
    SPLITS,
    EncodedSet,
    digest,
    find_split,
    picture_files,
    require_split,
)
from vitreous.data.layouts.base import Layout, expanded
from vitreous.data.layouts.masks import MASK_ENDINGS, read_mask
from vitreous.errors import InputError

# Folders of other layouts, in small letters.
PICTURE_FOLDERS = {"images", "image", "img", "imgs", "jpegimages", "pngimages", "leftimg8bit", "img_dir"}
TARGET_FOLDERS = {"masks", "mask", "labels", "annotations", "gtfine", "ann_dir", "instances"}
MASKS_FOLDER, BORDER = "masks", 255  # where masks of objects are, and their value between object and background


class ClassFolder(EncodedSet):
    """The images of one split; classes are the names of its sub-folders, `in_order`."""

    def __init__(self, root: str | os.PathLike[str], split: str, *, strict: bool = True) -> None:
        """`strict` refuses classes without images, and splits whose classes differ."""
        root = Path(root)
        self.folder = root / _split_folder(root, split)
        self.classes = class_names(self.folder)
        if strict:
            self._check_same_classes(root)
        self._find_files(strict)
        self._find_masks(root / MASKS_FOLDER / self.folder.name, strict)

    def _find_files(self, strict: bool) -> None:
        self.files: list[tuple[str, int]] = []  # path below the folder, label
        self.passed_over = ()
        for label, name in enumerate(self.classes):
            found, passed_over = picture_files(self.folder / name)
            self.passed_over += passed_over
            if strict and not found:
                raise InputError(
                    f"class folder '{self.folder / name}' holds no image ({', '.join(SUFFIXES)}); "
                    "add images or remove the folder"
                )
            self.files += [(f"{name}/{path}", label) for path in found]

    def _find_masks(self, folder: Path, strict: bool) -> None:
        """Of objects, by the names of their pictures; `strict` refuses masks that belong to no picture."""
        stems = {os.path.splitext(name)[0]: name for name in picture_files(folder).names}
        fitting = {path: os.path.splitext(path)[0] for path, _ in self.files} if stems else {}
        names = {path: [stem + end for end in MASK_ENDINGS if stem + end in stems] for path, stem in fitting.items()}
        self.masks = {path: folder / stems[found[0]] for path, found in names.items() if found}
        stray = sorted({folder / name for name in stems.values()} - set(self.masks.values()))
        self.faults = tuple(f"mask '{file}' belongs to no picture in '{self.folder}'" for file in stray)
        if strict and stray:
            raise InputError(
                f"{self.faults[0]} ({len(stray)} such masks); name masks like their pictures, or remove them"
            )

    def object_mask(self, index: int) -> Image.Image | None:
        file = self.masks.get(self.files[index][0])
        if file is None:
            return None
        values = read_mask(file, self.encoded(index))
        shown = (values != 0) & (values != BORDER)
        if not shown.any() and values.any():
            raise ImageError(
                f"mask '{file}' holds {BORDER} alone, which is a border that counts as nothing; draw objects as 1"
            )
        return Image.fromarray(shown) if shown.any() else None

    def has_object_mask(self, index: int) -> bool:
        return self.files[index][0] in self.masks

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        return f"{self.folder.name}/{self.files[index][0]}"

    def target(self, index: int) -> dict[str, Any]:
        return {"labels": self.files[index][1]}

    def encoded(self, index: int) -> Path:
        return self.folder / self.files[index][0]

    @cached_property
    def fingerprint(self) -> str:
        """Changes when files are added, removed, renamed or change their length."""
        return digest(f"{path}\0{(self.folder / path).stat().st_size}" for path, _ in self.files)

    def _check_same_classes(self, root: Path) -> None:
        """Labels are positions in the sorted class list: a class that one split lacks would shift the others."""
        train = find_split("train", split_folders(root))
        if train is None or self.folder == root / train:
            return
        trained = class_names(root / train)
        missing, extra = sorted(set(trained) - set(self.classes)), sorted(set(self.classes) - set(trained))
        if missing or extra:
            only = [f"only in train: {', '.join(missing)}"] if missing else []
            only += [f"only in {self.folder.name}: {', '.join(extra)}"] if extra else []
            raise InputError(
                f"the class folders of '{root / train}' and '{self.folder}' differ ({'; '.join(only)}); "
                "both splits need the same ones"
            )


def split_folders(root: Path) -> list[str]:
    """Folders that may be splits; none if there is no such folder as `root`."""
    return [entry.name for entry in os.scandir(root) if entry.is_dir()] if root.is_dir() else []


def _split_folder(root: Path, split: str) -> str:
    there = split_folders(root)
    train = find_split("train", there)
    if split == "val" and train is not None and find_split("val", there) is None:
        raise InputError(
            f"folder '{root}' has no split 'val'; looked for {' or '.join(SPLITS['val'])}, found "
            f"{', '.join(sorted(there))}; make one, or give '{root / train}' itself, of which a share is then held out"
        )
    return require_split(split, there, f"folder '{root}'")


def has_class_folders(root: Path) -> bool:
    """Whether some split has folders that may be classes."""
    splits = [root / name for name in split_folders(root) if name in NAMES_OF_SPLITS]
    inside = (name for split in splits for name in split_folders(split) if not name.startswith("."))
    return any(name.lower() not in PICTURE_FOLDERS | TARGET_FOLDERS for name in inside)


def class_folders(root: Path) -> list[str]:
    """Folders that may be classes: not hidden, and not the masks of the others."""
    names = [name for name in split_folders(root) if not name.startswith(".")]
    masked = MASKS_FOLDER in names and set(split_folders(root / MASKS_FOLDER)) & set(names)
    return [name for name in names if not (masked and name == MASKS_FOLDER)]


def class_names(folder: Path) -> tuple[str, ...]:
    names = in_order(class_folders(folder))
    if not names:
        raise InputError(f"'{folder}' holds no class folders; put each class's images in {folder.name}/<class>/")
    return tuple(names)


def in_order(names: Iterable[str]) -> list[str]:
    """Sorted; if all are numbers, in the order of the numbers, as ImageNet's folders 0 to 999 are meant."""
    found = sorted(names)
    return sorted(found, key=int) if all(re.fullmatch("[0-9]{1,18}", name) for name in found) else found


LAYOUT = Layout(
    name="class folders",
    example="DIR/train/<class>/*.jpg and DIR/val/<class>/*.jpg (or test/ instead of val/)",
    splits=lambda data: split_folders(expanded(data)) if has_class_folders(expanded(data)) else None,
    open_split=lambda request: ClassFolder(request.path, request.split, strict=request.strict),
    order=140,  # last: other layouts have folders named train, too
)
