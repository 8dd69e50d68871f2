"""Does a model that is 80 % sure answer right 80 % of the time?"""

from typing import NamedTuple

import numpy as np
from torch import Tensor

BINS = 15  # as in Guo et al., "On Calibration of Modern Neural Networks" (2017)


class ReliabilityBin(NamedTuple):
    low: float  # its confidences lie above this …
    high: float  # … and up to this
    images: int
    confidence: float | None  # mean; None when the bin is empty
    accuracy: float | None


class Calibration:
    """Expected calibration error and the table behind it.

    The confidence of an answer is the probability the model gives it. Confidences are sorted into 15 bins of equal
    width, the b-th holding those in ((b-1)/15, b/15]. With n_b of the n images in bin b,

        ECE = sum over b of  n_b / n * |accuracy of bin b - mean confidence of bin b|

    It lies between 0 and 1; 0 is perfect. It depends on the bins: compare only values with as many of them.
    """

    def __init__(self) -> None:
        self.images = np.zeros(BINS, dtype=np.int64)
        self.right = np.zeros(BINS, dtype=np.int64)
        self.confidence = np.zeros(BINS)  # summed

    def update(self, predictions: list[dict[str, Tensor]], targets: dict[str, Tensor]) -> None:
        """Predictions: per image `labels` and `scores`, best first. Targets: `labels` (B,)."""
        labels = targets["labels"].numpy(force=True)
        answers = np.array([int(prediction["labels"][0]) for prediction in predictions])
        confidences = np.array([float(prediction["scores"][0]) for prediction in predictions])
        # Rounding may give 1.0000001; what is no number goes anywhere, as it makes the result no number.
        places = np.clip(np.ceil(np.nan_to_num(confidences) * BINS).astype(int) - 1, 0, BINS - 1)
        np.add.at(self.images, places, 1)
        np.add.at(self.right, places, answers == labels)
        np.add.at(self.confidence, places, confidences)

    def merge(self, other: "Calibration") -> None:
        """Add what was counted on another part of the data."""
        self.images += other.images
        self.right += other.right
        self.confidence += other.confidence

    def compute(self) -> dict[str, float]:
        return {"ece": float(np.abs(self.right - self.confidence).sum() / self.images.sum())}

    def bins(self) -> list[ReliabilityBin]:
        rows = zip(self.images.tolist(), self.right.tolist(), self.confidence.tolist(), strict=True)
        return [
            ReliabilityBin(place / BINS, (place + 1) / BINS, n, total / n if n else None, right / n if n else None)
            for place, (n, right, total) in enumerate(rows)
        ]
