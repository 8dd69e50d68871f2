"""Images sorted into one folder per class: `DATA/train/cat/1.jpg`, `DATA/val/cat/7.jpg`."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any

from vitreous.data.image import SUFFIXES
from vitreous.data.image_set import EncodedSet, digest, find_split, require_split
from vitreous.errors import InputError


class ClassFolder(EncodedSet):
    """The images of one split; classes are the sorted names of its sub-folders."""

    def __init__(self, root: str | os.PathLike[str], split: str, *, strict: bool = True) -> None:
        """`strict` refuses classes without images, and splits whose classes differ."""
        root = Path(root)
        self.folder = root / require_split(split, split_folders(root), f"folder '{root}'")
        self.classes = class_names(self.folder)
        if strict:
            self._check_same_classes(root)
        self.files: list[tuple[str, int]] = []  # path below the split's folder, label
        for label, name in enumerate(self.classes):
            found = _images_below(self.folder, name)
            if strict and not found:
                raise InputError(
                    f"class folder '{self.folder / name}' holds no image ({', '.join(SUFFIXES)}); "
                    "add images or remove the folder"
                )
            self.files += [(path, label) for path in found]

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
    return [entry.name for entry in root.iterdir() if entry.is_dir()] if root.is_dir() else []


def class_names(folder: Path) -> tuple[str, ...]:
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise InputError(f"'{folder}' holds no class folders; put each class's images in {folder.name}/<class>/")
    return tuple(names)


def _images_below(folder: Path, name: str) -> list[str]:
    """Image paths of one class relative to `folder`, in an order that does not depend on the file system."""
    found = []
    for parent, folders, files in os.walk(folder / name):
        folders[:] = [entry for entry in folders if not entry.startswith(".")]
        found += [os.path.join(parent, file) for file in files if file.lower().endswith(SUFFIXES) and file[0] != "."]
    return sorted(Path(path).relative_to(folder).as_posix() for path in found)
