"""One label for each image."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from vitreous.data.mixup import Mixup
from vitreous.data.source import ImageSet
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.metrics.accuracy import Accuracy
from vitreous.metrics.examination import Examination
from vitreous.tasks.base import Assessment, Prediction, Targets, Task, View
from vitreous.tasks.distill import Distillation


class LabelledViews:
    """Pictures of an image set, seen through a (possibly random) view, with their class label."""

    def __init__(self, images: ImageSet, view: Callable[[Image.Image], Tensor]) -> None:
        self.images, self.view = images, view
        self.at_least = getattr(view, "at_least", None)  # a view that shrinks pictures may take them reduced

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Any]]:
        picture = self.images.picture(index, at_least=self.at_least)
        return self.view(picture), {"labels": self.images.target(index)["labels"]}


class Classify(Task):
    name, purpose, targets = "classify", "classify", "labels"
    settings = frozenset(
        {
            *("repeats", "label_smoothing", "mixup", "cutmix", "mixup_switch", "augment", "erasing", "scale", "pad"),
            *("crop_ratio", "teacher", "distill", "distill_weight", "distill_temperature"),
        }
    )
    main_metric = "top1"

    def __init__(
        self,
        classes: tuple[str, ...],
        *,
        label_smoothing: float = 0.0,
        mixup: Mixup | None = None,
        distillation: Distillation | None = None,
    ) -> None:
        super().__init__(classes)
        if not 0 <= label_smoothing < 1:
            raise InputError(f"label smoothing {label_smoothing} cannot be used; it must lie between 0 and 1")
        self.label_smoothing = label_smoothing
        self.mixup = mixup if mixup is not None else Mixup()
        self.distillation = distillation

    @classmethod
    def from_settings(cls, settings: Any, images: ImageSet, distillation: Distillation | None = None) -> Self:
        smoothing = settings.label_smoothing
        return cls(images.classes, label_smoothing=smoothing, mixup=settings.mixing(), distillation=distillation)

    def training_view(self, preprocess: Preprocess, settings: Any) -> View:
        return settings.augmentation(preprocess)

    def evaluation_view(self, preprocess: Preprocess) -> View:
        return preprocess.pixels

    def dataset(self, images: ImageSet, view: View) -> LabelledViews:
        return LabelledViews(images, view)

    def augment_batch(self, images: Tensor, targets: Targets, rng: np.random.Generator) -> tuple[Tensor, Targets]:
        if not self.mixup.active:
            return images, targets
        mixed = self.mixup(images, targets["labels"], len(self.classes), rng)
        return mixed.images, {"labels": mixed.labels}

    def losses(self, model: nn.Module, images: Tensor, targets: Targets) -> dict[str, Tensor]:
        """`labels` are indices (B,) or, after mixing, shares (B, K); smoothing means the same for both."""
        logits = model(images).float()
        learnt = F.cross_entropy(logits, targets["labels"], label_smoothing=self.label_smoothing)
        if self.distillation is None:
            return {"cross_entropy": learnt}
        share = self.distillation.weight
        taught = self.distillation.loss(logits, images)
        return {"cross_entropy": (1 - share) * learnt, "distillation": share * taught}

    def predict(self, model: nn.Module, images: Tensor, targets: Targets | None = None) -> list[Prediction]:
        return _ranked(model(images).float())

    def assess(self, model: nn.Module, images: Tensor, targets: Targets) -> Assessment:
        logits = model(images).float()
        return Assessment({"cross_entropy": F.cross_entropy(logits, targets["labels"])}, _ranked(logits))

    def metric(self) -> Accuracy:
        return Accuracy(self.classes)

    def examination(self, worst: int) -> Examination:
        return Examination(self.classes, worst=worst)


def _ranked(logits: Tensor, most: int = 5) -> list[Prediction]:
    """The likeliest classes of each image, best first."""
    scores, labels = logits.softmax(-1).topk(min(most, logits.shape[-1]))
    scores, labels = scores.cpu(), labels.cpu()  # one transfer for the whole batch
    return [{"labels": labels[i], "scores": scores[i]} for i in range(len(labels))]


TASK = Classify
