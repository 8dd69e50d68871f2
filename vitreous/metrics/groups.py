"""Accuracy in groups of images: the mean over groups, the worst of them, and two models side by side.

Intervals are of 95 %: Wilson's for a share, which holds for small groups and for shares of 0 and 1 too, and Newcombe's
for the difference of two shares of the same images ("Improved confidence intervals for the difference between binomial
proportions based on paired data", 1998, method 10), which is built of two of Wilson's.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

QUANTILE = 1.959964  # of the normal distribution, for 95 %
FEW_IMAGES = 30  # a group with fewer says little: its interval may be 34 points wide


class GroupFigures(NamedTuple):
    name: str
    values: dict[str, str]  # column -> value
    images: int
    right: int
    accuracy: float | None  # None without images
    low: float
    high: float

    @property
    def few(self) -> bool:
        return self.images < FEW_IMAGES


class GroupChange(NamedTuple):
    """Two models on the images of a group that both could read."""

    name: str
    images: int
    before: float
    after: float
    low: float  # of the difference
    high: float


class GroupAccuracy:
    """Which images were answered rightly, by group."""

    def __init__(self, names: Sequence[str], values: Sequence[Mapping[str, str]], members: Sequence[int]) -> None:
        """Names and values of the groups, and the group of each image of the data."""
        self.names, self.values, self.members = tuple(names), [dict(row) for row in values], members
        self.right: dict[int, bool] = {}  # place in the data -> whether the first answer was right

    def fresh(self) -> "GroupAccuracy":
        """The same groups for another model."""
        return GroupAccuracy(self.names, self.values, self.members)

    def update(self, predictions: list[dict[str, Tensor]], targets: dict[str, Tensor]) -> None:
        """As for `Accuracy`; targets also hold `indices` (B,), the images' places in the data set."""
        rows = zip(targets["indices"].tolist(), targets["labels"].tolist(), predictions, strict=True)
        self.right |= {index: int(prediction["labels"][0]) == label for index, label, prediction in rows}

    def merge(self, other: "GroupAccuracy") -> None:
        self.right |= other.right

    def compute(self) -> dict[str, float]:
        return {"group_mean": self.mean(), "worst_group": self.worst().accuracy or 0.0}

    def mean(self) -> float:
        known = [group.accuracy for group in self.per_group() if group.accuracy is not None]
        return math.fsum(known) / len(known)

    def worst(self) -> GroupFigures:
        """The group with the lowest accuracy; of equal ones the largest."""
        known = [group for group in self.per_group() if group.accuracy is not None]
        return min(known, key=lambda group: (group.accuracy, -group.images))

    def per_group(self) -> list[GroupFigures]:
        images, right = [0] * len(self.names), [0] * len(self.names)
        for index, correct in self.right.items():
            images[self.members[index]] += 1
            right[self.members[index]] += correct
        return [
            GroupFigures(name, values, n, k, k / n if n else None, *wilson(k, n))
            for name, values, n, k in zip(self.names, self.values, images, right, strict=True)
        ]

    def changes_from(self, before: "GroupAccuracy") -> list[GroupChange]:
        """Against another model on the same images: all of them together, then each group."""
        both = sorted(self.right.keys() & before.right.keys())
        parts = {"all images": both}
        for number, name in enumerate(self.names):
            parts[name] = [index for index in both if self.members[index] == number]
        return [
            _change(name, [(before.right[index], self.right[index]) for index in part])
            for name, part in parts.items()
            if part
        ]


def _change(name: str, answers: list[tuple[bool, bool]]) -> GroupChange:
    kept, gained = answers.count((True, True)), answers.count((False, True))
    lost, missed = answers.count((True, False)), answers.count((False, False))
    images = len(answers)
    low, high = paired_difference(kept, gained, lost, missed)
    return GroupChange(name, images, (kept + lost) / images, (kept + gained) / images, low, high)


def wilson(right: int, images: int) -> tuple[float, float]:
    """Interval of a share; from 0 to 1 if there are no images."""
    if not images:
        return 0.0, 1.0
    share, spread = right / images, QUANTILE**2 / images
    middle = (share + spread / 2) / (1 + spread)
    half = QUANTILE * math.sqrt(share * (1 - share) / images + spread / (4 * images)) / (1 + spread)
    # Rounding must not leave out a share of exactly 0 or 1.
    return min(max(middle - half, 0.0), share), max(min(middle + half, 1.0), share)


def paired_difference(kept: int, gained: int, lost: int, missed: int) -> tuple[float, float]:
    """Interval of (gained − lost) / images; `kept` images were right before and after, `missed` ones never."""
    images = kept + gained + lost + missed
    after, before = (kept + gained) / images, (kept + lost) / images
    (low, high), (low_before, high_before) = wilson(kept + gained, images), wilson(kept + lost, images)
    product = (kept + gained) * (lost + missed) * (kept + lost) * (gained + missed)
    cross = kept * missed - gained * lost
    if cross > 0:
        cross = max(cross - images / 2, 0)  # type: ignore[assignment]  # continuity
    agreement = cross / math.sqrt(product) if product else 0.0  # the correlation of the two models' answers

    def reach(one: float, other: float) -> float:
        return math.sqrt(max(one**2 - 2 * agreement * one * other + other**2, 0.0))

    change = after - before
    return change - reach(after - low, high_before - before), change + reach(high - after, before - low_before)
