"""Top-1, top-5 and per-class accuracy of classification, counted exactly."""

from torch import Tensor

from vitreous.errors import InputError


class Accuracy:
    """Counts right answers per class; nothing is averaged before `compute`.

    With five classes or fewer a top-5 answer is always right and says nothing, so it is left out.
    """

    def __init__(self, classes: tuple[str, ...]) -> None:
        self.classes = classes
        self.seen = [0] * len(classes)
        self.right = [0] * len(classes)
        self.in_top5 = [0] * len(classes)

    def update(self, predictions: list[dict[str, Tensor]], targets: dict[str, Tensor]) -> None:
        """Predictions: per image `labels`, best first. Targets: `labels` (B,)."""
        labels = targets["labels"].cpu()
        if len(predictions) != len(labels):
            raise InputError(f"{len(predictions)} predictions for {len(labels)} targets; they must be as many")
        for prediction, label in zip(predictions, labels.tolist(), strict=True):
            ranked = prediction["labels"][:5].tolist()
            self.seen[label] += 1
            self.right[label] += ranked[0] == label
            self.in_top5[label] += label in ranked

    def compute(self) -> dict[str, float]:
        total = sum(self.seen)
        if not total:
            raise InputError("no image was scored; the data set is empty")
        result = {"top1": sum(self.right) / total}
        if len(self.classes) > 5:
            result["top5"] = sum(self.in_top5) / total
        return result

    def per_class(self) -> dict[str, float]:
        """Accuracy of every class that occurred."""
        return {
            name: right / seen for name, right, seen in zip(self.classes, self.right, self.seen, strict=True) if seen
        }
