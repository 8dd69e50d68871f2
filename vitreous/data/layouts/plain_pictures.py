"""Pictures of which nothing else is known: `DATA/1.jpg`, `DATA/holiday/7.jpg`, or the same below train/ and val/."""

from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any

from vitreous.data.image_set import (
    NAMES_OF_SPLITS,
    EncodedSet,
    digest,
    file_bytes,
    holds_pictures,
    picture_files,
    require_split,
)
from vitreous.data.layouts.base import PICTURES, Layout, Request, expanded
from vitreous.data.layouts.folder import split_folders


class PlainPictures(EncodedSet):
    """All picture files below a folder."""

    classes = ()

    def __init__(self, root: Path, split: str = "") -> None:
        """`split` is the folder of a split below the root, or nothing if there are none."""
        self.folder, self.split = root / split, split
        self.files, self.passed_over = picture_files(self.folder)

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        return f"{self.split}/{self.files[index]}" if self.split else self.files[index]

    def target(self, index: int) -> dict[str, Any]:
        return {}

    def encoded(self, index: int) -> Path:
        return self.folder / self.files[index]

    @cached_property
    def fingerprint(self) -> str:
        """Changes when files are added, removed or renamed, or change their length."""
        return digest(f"{name}\0{file_bytes(self.folder / name)}" for name in self.files)


def picture_splits(data: str) -> Collection[str] | None:
    """Names of the splits: both that are learnt from and measured, or none at all."""
    root = expanded(data)
    if not root.is_dir() or not holds_pictures(root):
        return None
    named = [name for name in split_folders(root) if name in NAMES_OF_SPLITS and holds_pictures(root / name)]
    return named if len(named) > 1 else ()


def open_pictures(request: Request) -> PlainPictures:
    there = picture_splits(request.data)
    return PlainPictures(request.path, require_split(request.split, there, f"folder '{request.path}'") if there else "")


LAYOUT = Layout(
    name="pictures without labels",
    example="DIR/*.jpg, in folders or not, of which a share is held out",
    splits=picture_splits,
    open_split=open_pictures,
    targets=(PICTURES,),
    order=200,  # the very last: whatever says more about its pictures is of another layout
)
