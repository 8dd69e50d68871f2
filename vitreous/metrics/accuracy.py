"""Top-1, top-5, per-class figures and the confusion matrix of classification, counted exactly."""

from collections import Counter
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitreous.errors import InputError


class ClassFigures(NamedTuple):
    images: int  # that are of the class
    recall: float | None  # share of them that were recognised; None without images
    precision: float | None  # share of the answers "this class" that were right; None if it was never answered


class Accuracy:
    """Counts answers; nothing is averaged before `compute`, so parts of the data can be counted apart and merged.

    With five classes or fewer a top-5 answer is always right and says nothing, so it is left out.
    """

    def __init__(self, classes: tuple[str, ...]) -> None:
        self.classes = classes
        self.pairs: Counter[tuple[int, int]] = Counter()  # (true, answered): only what occurs, for 20,000 classes too
        self.in_top5 = 0

    def update(self, predictions: list[dict[str, Tensor]], targets: dict[str, Tensor]) -> None:
        """Predictions: per image `labels`, best first. Targets: `labels` (B,)."""
        labels = targets["labels"].cpu()
        if len(predictions) != len(labels):
            raise InputError(f"{len(predictions)} predictions for {len(labels)} targets; they must be as many")
        for prediction, label in zip(predictions, labels.tolist(), strict=True):
            ranked = prediction["labels"][:5].tolist()
            self.pairs[label, ranked[0]] += 1
            self.in_top5 += label in ranked

    def merge(self, other: "Accuracy") -> None:
        """Add what was counted on another part of the data."""
        self.pairs.update(other.pairs)
        self.in_top5 += other.in_top5

    def compute(self) -> dict[str, float]:
        total = self.pairs.total()
        if not total:
            raise InputError("no image was scored; the data set is empty")
        result = {"top1": sum(n for (true, answer), n in self.pairs.items() if true == answer) / total}
        if len(self.classes) > 5:
            result["top5"] = self.in_top5 / total
        return result

    def confusion(self, groups: int | None = None) -> np.ndarray:
        """Counts as a (true, answered) matrix; with fewer `groups` than classes, neighbouring classes are summed."""
        side, count = groups or len(self.classes), len(self.classes)
        matrix = np.zeros((side, side), dtype=np.int64)
        for (true, answer), n in self.pairs.items():
            matrix[true * side // count, answer * side // count] += n
        return matrix

    def confused(self, most: int) -> list[tuple[str, str, int]]:
        """The most frequent mistakes: (true class, answer, how often)."""
        names = unique_names(self.classes)
        wrong = [(n, true, answer) for (true, answer), n in self.pairs.items() if true != answer]
        wrong.sort(key=lambda row: (-row[0], *row[1:]))
        return [(names[true], names[answer], n) for n, true, answer in wrong[:most]]

    def per_class(self) -> dict[str, ClassFigures]:
        """Figures of every class that occurred or was answered."""
        seen: Counter[int] = Counter()
        answered: Counter[int] = Counter()
        for (true, answer), n in self.pairs.items():
            seen[true] += n
            answered[answer] += n

        def figures(label: int) -> ClassFigures:
            right, images, answers = self.pairs[label, label], seen[label], answered[label]
            return ClassFigures(images, right / images if images else None, right / answers if answers else None)

        names = unique_names(self.classes)
        return {names[label]: figures(label) for label in sorted({*seen, *answered})}


def unique_names(classes: tuple[str, ...]) -> list[str]:
    """Names that can be keys: where two classes are called alike (ImageNet's two cranes), the label is added."""
    often = Counter(classes)
    return [name if often[name] == 1 else f"{name} ({label})" for label, name in enumerate(classes)]
