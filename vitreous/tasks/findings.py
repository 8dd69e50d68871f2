"""Findings: what a model found in a picture that has more than one answer, of which one at a time is explained.

A task chooses among its findings (`Task.choose_finding`) and says what the data know of one (`Task.finding_truth`).
A finding is a dictionary with at least `rank` (from 1), `name`, `short` (its name without numbers) and `score` or, of
regions, `share`.

Shapes: h w picture as the model sees it, H W the same padded at the right and the bottom.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitreous.attribution.target import Target
from vitreous.errors import InputError

FindingRow = dict[str, Any]
FoundTargets = Sequence[tuple[FindingRow, Target]]
PixelBox = tuple[float, float, float, float]  # left, top, right, bottom
Point = tuple[float, float]  # across and down, in shares of the picture
ABSENT = -1  # the true label of a place where there is no such thing


@dataclass(frozen=True)
class FindingQuery:
    """Which finding is to be explained; nothing given: the first."""

    finding: int | None = None  # by rank, from 1
    label: str | None = None  # the best box or the largest region of a class
    joint: str | None = None
    region: PixelBox | None = None  # in pixels of the picture

    def given(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}


def parse_region(text: str) -> PixelBox:
    try:
        left, top, right, bottom = map(float, text.split(","))
    except ValueError as reason:
        raise InputError(
            f"--region {text} given; write left,top,right,bottom in pixels: --region 10,20,200,150"
        ) from reason
    return left, top, right, bottom


class ModelView(NamedTuple):
    """A picture as the model sees it."""

    picture: Image.Image  # without padding
    padded: tuple[int, int]  # height and width with it
    original: tuple[int, int]  # height and width of the picture itself

    @property
    def size(self) -> tuple[int, int]:
        return self.picture.height, self.picture.width

    def scaled(self, box: PixelBox) -> PixelBox:
        """From pixels of the picture to those the model sees."""
        down, across = (seen / whole for seen, whole in zip(self.size, self.original, strict=True))
        return box[0] * across, box[1] * down, box[2] * across, box[3] * down

    def pad(self, region: Tensor) -> Tensor:
        """(h, w) -> (1, H, W)."""
        down, across = (whole - own for whole, own in zip(self.padded, region.shape, strict=True))
        return F.pad(region, (0, across, 0, down))[None]


class FindingChoice(NamedTuple):
    """Everything found, best first, and what of it is explained."""

    findings: list[FindingRow]
    finding: FindingRow | None = None
    target: Target | None = None
    marked: Image.Image | None = None  # the picture as the model sees it, larger, with the finding outlined
    nothing: str = ""  # why there is no target


class FindingTruth(NamedTuple):
    """What the data say about a finding."""

    mask: Tensor | None = None  # (h, w), True on the object; None where there is none, or nobody knows
    label: int | None = None  # of the object, among `Task.finding_names`; `ABSENT`; or None: nobody knows
    outlined: bool = True  # whether what lies outside of the mask is background


def finding_score(finding: FindingRow) -> float:
    """What a finding is told with, and ranked by: its score as `vitreous predict` gives it; of a region, which has
    none, the share of the picture that its class covers, background last.
    """
    return finding["share"] if "share" in finding else finding["score"]


def finding_at(findings: list[FindingRow], rank: int) -> FindingRow:
    if rank > len(findings):
        known = ", ".join(entry["name"] for entry in findings[:10])
        raise InputError(f"finding {rank} was asked for, but there are {len(findings)}: {known}")
    return findings[rank - 1]
