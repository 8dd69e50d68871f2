"""How much the features of pictures differ from each other."""

from typing import Any

import torch
import torch.nn.functional as F

from vitreous.metrics.figures import Counts


class FeatureSpread(Counts):
    """1 - |mean|² of unit features: 0 if all pictures have the same ones, 1 if they have no common direction."""

    counted = ("total", "pictures")

    def __init__(self) -> None:
        self.total, self.pictures = torch.zeros(()), 0

    def update(self, predictions: list[dict[str, Any]], targets: dict[str, Any]) -> None:
        rows = torch.stack([one["features"] for one in predictions])
        self.total = self.total + F.normalize(rows.double(), dim=1).sum(0)
        self.pictures += len(predictions)

    def compute(self) -> dict[str, float]:
        return {"spread": 1 - (self.total / max(1, self.pictures)).square().sum().item()}
