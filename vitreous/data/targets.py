"""What data say about their pictures: the kinds of targets that layouts offer and tasks learn from."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple


class TargetKind(NamedTuple):
    meaning: str
    counted: str  # what a table of classes counts, after "7 classes"


TARGET_KINDS = {
    "labels": TargetKind("one class for each picture", counted=""),
    "boxes": TargetKind("objects, each with a box, a class and perhaps a mask", counted=", objects of each"),
    "semantic": TargetKind("a class for every pixel", counted=", images that show each"),
    "keypoints": TargetKind("objects with named points, one at a time", counted=", objects of each"),
}


def _as_arguments(kinds: Collection[str]) -> str:
    return f"targets {' or '.join(kinds)}"


@dataclass(frozen=True)
class Wording:
    """How errors about unfit data speak of its uses. What has tasks names those instead of kinds of targets."""

    purpose: str = ""  # completes "cannot use data X to ..."
    options: Callable[[Collection[str]], str] = _as_arguments  # what to use for data that offer some kinds
