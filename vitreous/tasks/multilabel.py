"""Any number of labels for each image: one yes or no a class, each with a probability of its own."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from vitreous.attribution.target import Target, at_least_float32
from vitreous.data.source import ImageSet
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.metrics.label_sets import PRESENT_FROM, LabelSetAccuracy
from vitreous.tasks.base import Assessment, PictureView, PictureViews, Prediction, Targets, Task
from vitreous.tasks.findings import ABSENT, FindingChoice, FindingQuery, FindingTruth, ModelView, finding_at
from vitreous.tasks.results import PictureResult


@dataclass(frozen=True, eq=False)
class LabelSet(PictureResult):
    """The probability of each class, the likeliest first; those from `min_score` on are said."""

    labels: NDArray[np.int64]  # (K,) places in `classes`
    probabilities: NDArray[np.float64]  # (K,)
    min_score: float = PRESENT_FROM

    @property
    def names(self) -> list[str]:
        """Of the classes that are said."""
        said = self.labels[self.probabilities >= self.min_score]
        return [self.classes[label] for label in said]

    def to_dict(self) -> dict[str, Any]:
        ranked = zip(self.labels.tolist(), self.probabilities.tolist(), strict=True)
        return {
            "labels": self.names,
            "predictions": [{"class": self.classes[label], "probability": score} for label, score in ranked],
        }

    def summary(self) -> str:
        said = zip(self.names, self.probabilities.tolist(), strict=False)
        return "   ".join(f"{name} {score:.1%}" for name, score in said) or f"nothing from {self.min_score:.0%}"


@dataclass(frozen=True, eq=False)
class LabelTarget(Target):
    """One label of a set. Its probability is a sigmoid, so that its logit is its log-odds."""

    labels: Tensor = None  # type: ignore[assignment]  # (B,), required

    def __call__(self, output: Tensor) -> Tensor:
        logits = at_least_float32(output).gather(1, self.labels[:, None])[:, 0]
        return logits.sigmoid() if self.scale == "probability" else logits

    def holds(self, output: Tensor) -> Tensor:
        return output.gather(1, self.labels[:, None])[:, 0] >= 0


class LabelSetViews(PictureViews):
    """Pictures with a one for each class that they show."""

    def learnt(self, index: int) -> dict[str, Any]:
        present = torch.zeros(len(self.images.classes))
        present[list(self.images.target(index)["label_set"])] = 1
        return {"present": present}


class MultiLabelTask(Task):
    name, purpose, targets = "multilabel", "tell any number of labels", "label_sets"
    settings = frozenset({"repeats", "label_smoothing", "augment", "erasing", "scale", "pad", "crop_ratio"})
    main_metric = "mAP"
    on_feature_maps = False
    like_classification = True
    query_fields = ("finding", "label")
    inferences = ("min_score",)
    batch_size = 32

    def __init__(self, classes: tuple[str, ...], *, label_smoothing: float = 0.0) -> None:
        super().__init__(classes)
        if not 0 <= label_smoothing < 1:
            raise InputError(f"label smoothing {label_smoothing} cannot be used; it must lie between 0 and 1")
        self.label_smoothing = label_smoothing

    @classmethod
    def from_settings(cls, settings: Any, images: ImageSet) -> Self:
        return cls(images.classes, label_smoothing=settings.label_smoothing)

    def training_view(self, preprocess: Preprocess, settings: Any) -> PictureView:
        return settings.augmentation(preprocess)

    def evaluation_view(self, preprocess: Preprocess) -> PictureView:
        return preprocess.pixels

    def dataset(self, images: ImageSet, view: PictureView) -> LabelSetViews:
        return LabelSetViews(images, view)

    def losses(self, model: nn.Module, images: Tensor, targets: Targets) -> dict[str, Tensor]:
        smooth = self.label_smoothing
        wanted = targets["present"] * (1 - smooth) + smooth / 2
        return {"binary_cross_entropy": F.binary_cross_entropy_with_logits(model(images).float(), wanted)}

    def predict(self, model: nn.Module, images: Tensor, targets: Targets | None = None) -> list[Prediction]:
        return [{"probabilities": row} for row in model(images).float().sigmoid().cpu()]

    def assess(self, model: nn.Module, images: Tensor, targets: Targets) -> Assessment:
        logits = model(images).float()
        loss = F.binary_cross_entropy_with_logits(logits, targets["present"])
        return Assessment({"binary_cross_entropy": loss}, [{"probabilities": row} for row in logits.sigmoid().cpu()])

    def metric(self) -> LabelSetAccuracy:
        return LabelSetAccuracy()

    # ---- answering and explaining ------------------------------------------------------------------------------------

    def sample(self, preprocess: Preprocess, picture: Image.Image, target: dict[str, Any]) -> tuple[Tensor, Any]:
        return preprocess.pixels(picture), target

    def result(self, picture: Image.Image, predictions: list[Prediction], targets: list[Targets]) -> LabelSet:
        scores, labels = predictions[0]["probabilities"].sort(descending=True)
        asked = self.inference.min_score
        least = PRESENT_FROM if asked is None else asked
        return LabelSet(picture, self.classes, labels.numpy(), scores.double().numpy(), least)

    def choose_finding(self, prediction: Prediction, view: ModelView, query: FindingQuery) -> FindingChoice:
        scores, labels = prediction["probabilities"].sort(descending=True)
        findings = [
            {"rank": rank, "short": self.classes[label], "name": f"{self.classes[label]} {score:.1%}", "score": score}
            for rank, (label, score) in enumerate(zip(labels.tolist(), scores.tolist(), strict=True), 1)
        ]
        ranks = {finding["short"]: finding["rank"] for finding in findings}
        finding = finding_at(findings, query.finding or (1 if query.label is None else ranks[query.label]))
        return FindingChoice(findings, finding, LabelTarget(labels=labels[[finding["rank"] - 1]]))

    def truth_view(self, preprocess: Preprocess) -> PictureView:
        return lambda picture, target: (preprocess.pixels(picture), target)

    def finding_truth(self, target: Target, known: Targets, size: tuple[int, int]) -> FindingTruth:
        if not isinstance(target, LabelTarget) or "label_set" not in known:
            return FindingTruth()
        label = int(target.labels[0])
        return FindingTruth(label=label if label in known["label_set"] else ABSENT)


TASK = MultiLabelTask
