"""What a layout of data is, and the kinds of targets that layouts offer and tasks learn from.

A file of this folder with a `LAYOUT` is a layout; `data/source.py` finds it there.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vitreous.data.image_set import ImageSet


class TargetKind(NamedTuple):
    meaning: str
    counted: str  # what a table of classes counts, after "7 classes"


PICTURES = "pictures"  # which every layout offers, whatever else it knows
TARGET_KINDS = {
    "labels": TargetKind("one class for each picture", counted=""),
    "label_sets": TargetKind("any number of classes for each picture", counted=", images of each"),
    "values": TargetKind("a number for each picture", counted=""),
    "boxes": TargetKind("objects, each with a box, a class and perhaps a mask", counted=", objects of each"),
    "semantic": TargetKind("a class for every pixel", counted=", images that show each"),
    "keypoints": TargetKind("objects with named points, one at a time", counted=", objects of each"),
    PICTURES: TargetKind("pictures alone", counted=""),
}


@dataclass(frozen=True)
class Wording:
    """How errors about unfit data speak of its uses. What has tasks names those instead of kinds of targets."""

    purpose: str = ""  # completes "cannot use data X to ..."
    # What to use for data that offer some kinds.
    options: Callable[[Collection[str]], str] = lambda kinds: f"targets {' or '.join(kinds)}"


@dataclass(frozen=True)
class Request:
    """What a layout is asked for; `size` and `count` matter only where pictures are drawn on the fly."""

    data: str
    split: str
    size: tuple[int, int]  # (H, W)
    count: int | None
    strict: bool  # refuse what training could not use, such as a class without pictures
    targets: str = "labels"  # one of the kinds that the layout offers
    ignore: tuple[int, ...] | None = None  # values of masks that stand for no class
    reduce_zero_label: bool = False  # value 0 of masks stands for no class, 1 for the first
    labelled: bool = True  # whether it takes labels to use the pictures
    follow: bool = False  # open what names in the data's files lead to, wherever it lies

    @property
    def path(self) -> Path:
        return expanded(self.data)


@dataclass(frozen=True)
class Layout:
    name: str
    example: str  # how it looks, for errors
    # Names of the splits in such data; None if the data are of another layout, none at all if they have no splits:
    # `open_split` then gives all, and val is held out.
    splits: Callable[[str], Collection[str] | None]
    open_split: Callable[[Request], ImageSet]
    targets: tuple[str, ...] = ("labels",)  # the kinds that it offers, of TARGET_KINDS
    order: int = 0  # the first that recognises the data wins; a layout that others could be taken for comes later
    drawn: bool = False  # on the fly: there are no files, and as many pictures as are asked for
    class_values: bool = False  # its masks hold values of classes, some of which may be ignored

    def kind(self, targets: str) -> str:
        """The kind of targets to open it with: who needs pictures alone takes what is known best about them."""
        return targets if targets in self.targets else self.targets[0]

    def recognises(self, data: str) -> bool:
        return self.splits(data) is not None


def expanded(data: str) -> Path:
    return Path(data).expanduser()
