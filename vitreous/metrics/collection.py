"""Several metrics of the same answers, as one."""

from collections.abc import Mapping
from typing import Any


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
