"""Everything that is told about a classifier: accuracy, confusion, calibration and the worst mistakes."""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from vitreous.errors import InputError
from vitreous.metrics.figures import Counts, require_as_many
from vitreous.metrics.groups import GroupAccuracy

BINS = 15  # as in Guo et al., "On Calibration of Modern Neural Networks" (2017)


class ClassFigures(NamedTuple):
    images: int  # that are of the class
    recall: float | None  # share of them that were recognised; None without images
    precision: float | None  # share of the answers "this class" that were right; None if it was never answered


class Accuracy(Counts):
    """Top-1, top-5, per-class figures and the confusion matrix, counted exactly.

    With five classes or fewer a top-5 answer is always right and says nothing, so it is left out.
    """

    counted = ("pairs", "in_top5")

    def __init__(self, classes: tuple[str, ...]) -> None:
        self.classes = classes
        self.pairs: Counter[tuple[int, int]] = Counter()  # (true, answered): only what occurs, for 20,000 classes too
        self.in_top5 = 0

    def update(self, predictions: list[dict[str, Tensor]], targets: dict[str, Tensor]) -> None:
        """Predictions: per image `labels`, best first. Targets: `labels` (B,)."""
        labels = targets["labels"].cpu()
        require_as_many(predictions, labels)
        for prediction, label in zip(predictions, labels.tolist(), strict=True):
            ranked = prediction["labels"][:5].tolist()
            self.pairs[label, ranked[0]] += 1
            self.in_top5 += label in ranked

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


class ReliabilityBin(NamedTuple):
    low: float  # its confidences lie above this …
    high: float  # … and up to this
    images: int
    confidence: float | None  # mean; None when the bin is empty
    accuracy: float | None


class Calibration(Counts):
    """Does a model that is 80 % sure answer right 80 % of the time? Expected calibration error and the table behind it.

    The confidence of an answer is the probability the model gives it. Confidences are sorted into 15 bins of equal
    width, the b-th holding those in ((b-1)/15, b/15]. With n_b of the n images in bin b,

        ECE = sum over b of  n_b / n * |accuracy of bin b - mean confidence of bin b|

    It lies between 0 and 1; 0 is perfect. It depends on the bins: compare only values with as many of them.
    """

    counted = ("images", "right", "confidence")

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

    def compute(self) -> dict[str, float]:
        return {"ece": float(np.abs(self.right - self.confidence).sum() / self.images.sum())}

    def bins(self) -> list[ReliabilityBin]:
        rows = zip(self.images.tolist(), self.right.tolist(), self.confidence.tolist(), strict=True)
        return [
            ReliabilityBin(place / BINS, (place + 1) / BINS, n, total / n if n else None, right / n if n else None)
            for place, (n, right, total) in enumerate(rows)
        ]


class Mistake(NamedTuple):
    image: int  # its place in the data set
    true: int  # label
    answer: int
    confidence: float  # probability of the answer


class Mistakes:
    """The wrong answers with the largest confidence: mislabelled images, or what the model has yet to learn."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.worst: list[Mistake] = []

    def update(self, predictions: list[dict[str, Tensor]], targets: dict[str, Tensor]) -> None:
        """As for `Accuracy`; targets also hold `indices` (B,), the images' places in the data set."""
        found = zip(targets["indices"].tolist(), targets["labels"].tolist(), predictions, strict=True)
        answers = [Mistake(i, true, int(p["labels"][0]), float(p["scores"][0])) for i, true, p in found]
        self._keep([answer for answer in answers if answer.answer != answer.true])

    def merge(self, other: "Mistakes") -> None:
        self._keep(other.worst)

    def _keep(self, new: list[Mistake]) -> None:
        self.worst = sorted([*self.worst, *new], key=lambda m: (-m.confidence, m.image))[: self.most]


class DetailedMetrics:
    """All of it together, counted in one pass over the images."""

    def __init__(self, classes: tuple[str, ...], *, worst: int) -> None:
        self.accuracy, self.calibration, self.mistakes = Accuracy(classes), Calibration(), Mistakes(worst)
        self._parts: tuple[Any, ...] = self.accuracy, self.calibration, self.mistakes
        self.groups: GroupAccuracy | None = None

    def count_groups(self, groups: GroupAccuracy) -> None:
        self.groups, self._parts = groups, (*self._parts, groups)

    def update(self, predictions: list[dict[str, Tensor]], targets: dict[str, Tensor]) -> None:
        for part in self._parts:
            part.update(predictions, targets)

    def merge(self, other: "DetailedMetrics") -> None:
        for part, others in zip(self._parts, other._parts, strict=True):
            part.merge(others)

    def compute(self) -> dict[str, float]:
        by_group = {} if self.groups is None else self.groups.compute()
        return self.accuracy.compute() | self.calibration.compute() | by_group
