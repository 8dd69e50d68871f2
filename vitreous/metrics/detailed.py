"""Everything `vitreous evaluate` tells about a classifier, counted in one pass over the images."""

from typing import NamedTuple

from torch import Tensor

from vitreous.metrics.accuracy import Accuracy
from vitreous.metrics.calibration import Calibration


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
    """Accuracy, calibration and the worst mistakes together."""

    def __init__(self, classes: tuple[str, ...], *, worst: int) -> None:
        self.accuracy, self.calibration, self.mistakes = Accuracy(classes), Calibration(), Mistakes(worst)

    def update(self, predictions: list[dict[str, Tensor]], targets: dict[str, Tensor]) -> None:
        for part in (self.accuracy, self.calibration, self.mistakes):
            part.update(predictions, targets)

    def merge(self, other: "DetailedMetrics") -> None:
        """Add what was counted on another part of the data."""
        self.accuracy.merge(other.accuracy)
        self.calibration.merge(other.calibration)
        self.mistakes.merge(other.mistakes)

    def compute(self) -> dict[str, float]:
        return self.accuracy.compute() | self.calibration.compute()
