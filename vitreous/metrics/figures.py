"""What metrics share: counts that add up, several metrics as one, and how figures are written."""

from collections.abc import Mapping, Sized
from typing import Any, ClassVar, Self

from vitreous.errors import InputError

OWN_UNIT = ("MAE", "RMSE")  # figures that are no shares, but in the unit of the data


class Counts:
    """Counts of answers; nothing is averaged before `compute`, so parts of the data can be counted apart and merged."""

    counted: ClassVar[tuple[str, ...]]  # attributes that hold the counts

    def merge(self, other: Self) -> None:
        """Add what was counted on another part of the data."""
        for name in self.counted:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def require_as_many(predictions: Sized, targets: Sized) -> None:
    if len(predictions) != len(targets):
        raise InputError(f"{len(predictions)} predictions for {len(targets)} targets; they must be as many")


class MetricCollection:
    """Each metric's figures, their names behind the metric's prefix."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = dict(parts)

    def update(self, predictions: list[dict[str, Any]], targets: dict[str, Any]) -> None:
        for part in self.parts.values():
            part.update(predictions, targets)

    def merge(self, other: "MetricCollection") -> None:
        """Add what was counted on another part of the data."""
        for prefix, part in self.parts.items():
            part.merge(other.parts[prefix])

    def compute(self) -> dict[str, float]:
        return {prefix + name: value for prefix, part in self.parts.items() for name, value in part.compute().items()}


def figure_text(name: str, value: float | None) -> str:
    """Losses and errors as they are, shares in per cent, a dash for what cannot be told, which COCO calls -1."""
    if value is None or value == -1:
        return "–"
    if name in OWN_UNIT:
        return f"{value:.4g}"
    return f"{value:.4f}" if "loss" in name else f"{value:.2%}"
