"""Images sorted into one folder per class: `DATA/train/cat/1.jpg`, `DATA/val/cat/7.jpg`."""

import hashlib
import os
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL import Image

from vitreous.data.image import SUFFIXES, load_image
from vitreous.errors import InputError

SPLITS = {"train": ("train",), "val": ("val", "test"), "test": ("test",)}  # names a split may have on the disk


class ClassFolder:
    """The images of one split; classes are the sorted names of its sub-folders."""

    def __init__(self, root: str | os.PathLike[str], split: str) -> None:
        self.folder = split_folder(Path(root), split)
        self.classes = class_names(self.folder)
        self._check_same_classes(Path(root))
        self.files: list[tuple[str, int]] = []  # path below the split's folder, label
        for label, name in enumerate(self.classes):
            found = _images_below(self.folder, name)
            if not found:
                raise InputError(
                    f"class folder '{self.folder / name}' holds no image ({', '.join(SUFFIXES)}); "
                    "add images or remove the folder"
                )
            self.files += [(path, label) for path in found]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Image.Image, dict[str, Any]]:
        path, label = self.files[index]
        return load_image(self.folder / path), {"labels": label}

    @cached_property
    def fingerprint(self) -> str:
        """Changes when files are added, removed, renamed or change their length."""
        digest = hashlib.sha256()
        for path, _ in self.files:
            digest.update(f"{path}\0{(self.folder / path).stat().st_size}\n".encode())
        return digest.hexdigest()

    def _check_same_classes(self, root: Path) -> None:
        """Labels are positions in the sorted class list: a class that one split lacks would shift the others."""
        if not (root / "train").is_dir() or self.folder == root / "train":
            return
        trained = class_names(root / "train")
        missing, extra = sorted(set(trained) - set(self.classes)), sorted(set(self.classes) - set(trained))
        if missing or extra:
            only = [f"only in train: {', '.join(missing)}"] if missing else []
            only += [f"only in {self.folder.name}: {', '.join(extra)}"] if extra else []
            raise InputError(
                f"the class folders of '{root / 'train'}' and '{self.folder}' differ ({'; '.join(only)}); "
                "both splits need the same ones"
            )


def looks_like_class_folders(root: Path) -> bool:
    return any((root / name).is_dir() for name in SPLITS["train"] + SPLITS["val"])


def split_folder(root: Path, split: str) -> Path:
    if split not in SPLITS:
        raise InputError(f"unknown split '{split}'; accepted: {', '.join(SPLITS)}")
    for name in SPLITS[split]:
        if (root / name).is_dir():
            return root / name
    wanted = " or ".join(f"'{name}/'" for name in SPLITS[split])
    there = ", ".join(sorted(entry.name for entry in root.iterdir() if entry.is_dir())) or "none"
    raise InputError(f"'{root}' has no {wanted} folder for split '{split}'; folders there: {there}")


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
