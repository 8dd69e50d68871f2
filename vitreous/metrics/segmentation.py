"""Intersection over union and pixel accuracy of semantic segmentation, counted exactly."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import InputError
from vitreous.metrics.accuracy import unique_names
from vitreous.metrics.figures import Counts, require_as_many


class ClassOverlap(NamedTuple):
    pixels: int  # that are of the class
    iou: float | None  # None where the class neither occurs nor is answered
    accuracy: float | None  # share of its pixels that were recognised; None without pixels


class SegmentationMetric(Counts):
    """Counts (true, answered) pairs of pixels."""

    counted = ("pairs",)

    def __init__(self, classes: tuple[str, ...], ignore: int = 255) -> None:
        self.classes, self.ignore = classes, ignore
        self.pairs = np.zeros((len(classes), len(classes)), dtype=np.int64)  # true, answered

    def update(self, predictions: list[dict[str, Tensor]], targets: dict[str, Tensor | Sequence[Tensor]]) -> None:
        """Predictions: per image `semantic` (h, w), a label for each pixel. Targets: `semantic`, of the same sizes."""
        truths = targets["semantic"]
        require_as_many(predictions, truths)
        for prediction, truth in zip(predictions, truths, strict=True):
            answer = prediction["semantic"]
            if answer.shape != truth.shape:
                raise InputError(
                    f"an answer of {tuple(answer.shape)} for labels of {tuple(truth.shape)} pixels; resize the answer"
                )
            self._count(truth, answer.to(truth.device))

    def _count(self, truth: Tensor, answer: Tensor) -> None:
        K = len(self.classes)
        counts = truth != self.ignore
        truth, answer = truth[counts].long(), answer[counts].long()
        for name, labels in (("true", truth), ("answered", answer)):
            if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < K:
                wrong = int(labels[(labels < 0) | (labels >= K)][0])
                raise InputError(f"{name} label {wrong} in a picture; classes are 0 to {K - 1}, ignored {self.ignore}")
        self.pairs += torch.bincount(truth * K + answer, minlength=K * K).view(K, K).cpu().numpy()

    def compute(self) -> dict[str, float]:
        """Means are over the classes that occur or, for IoU, are answered."""
        total = self.pairs.sum()
        if not total:
            raise InputError("no pixel was scored; the data set is empty, or all its pixels are ignored")
        figures = self.per_class().values()
        overlaps = [figure.iou for figure in figures if figure.iou is not None]
        shares = [figure.accuracy for figure in figures if figure.accuracy is not None]
        return {
            "mIoU": float(np.mean(overlaps)),
            "pixel_accuracy": float(np.trace(self.pairs) / total),
            "class_accuracy": float(np.mean(shares)),
        }

    def confusion(self) -> np.ndarray:
        """Pixels as a (true, answered) matrix."""
        return self.pairs.copy()

    def per_class(self) -> dict[str, ClassOverlap]:
        right, pixels, answers = np.diag(self.pairs), self.pairs.sum(1), self.pairs.sum(0)
        either = pixels + answers - right
        return {
            name: ClassOverlap(
                int(pixels[i]),
                float(right[i] / either[i]) if either[i] else None,
                float(right[i] / pixels[i]) if pixels[i] else None,
            )
            for i, name in enumerate(unique_names(self.classes))
        }
