"""One label for each image, learned from data and, if there is one, from a teacher.

The terms of a teacher are those that DeiT and XCiT add to the loss on labels, for a model with one head.
"""

import random
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from vitreous.data.class_weights import class_weights
from vitreous.data.guides import GuidedView, exchange_grounds
from vitreous.data.image import ImageError
from vitreous.data.mixup import Mixup
from vitreous.data.regions import find_regions, images_painted_over
from vitreous.data.source import ImageSet
from vitreous.data.transforms import Preprocess
from vitreous.drawing.annotate import enlarge_small
from vitreous.drawing.panels import labelled
from vitreous.errors import InputError
from vitreous.metrics.accuracy import Accuracy, DetailedMetrics
from vitreous.tasks.base import Assessment, PictureView, PictureViews, Prediction, Targets, Task
from vitreous.tasks.results import PictureResult


@dataclass(frozen=True)
class Teacher:
    """A trained classifier that is shown the pupil's own batches, mixed and augmented as they are."""

    model: nn.Module
    preprocess: Preprocess  # what it expects
    shown: Preprocess  # what the pupil's images went through
    columns: tuple[int, ...]  # where each class of the pupil is in the teacher's output
    resized: bool = False  # whether it takes images of its own size only

    def __post_init__(self) -> None:
        self.model.eval().requires_grad_(False)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """(B, K) logits in the order of the pupil's classes."""
        return self.model(self.translate(images)).float()[:, list(self.columns)]

    def translate(self, images: Tensor) -> Tensor:
        """Images as the teacher's own preprocessing would have left them."""
        theirs, ours = self.preprocess, self.shown
        if (theirs.mean, theirs.std) != (ours.mean, ours.std):
            images = theirs.normalise(ours.denormalise(images))
        if self.resized:
            images = F.interpolate(images, theirs.size, mode="bilinear", antialias=True)
        if theirs.hidden:
            images = theirs.normalise(images_painted_over(theirs.denormalise(images), theirs.hidden))
        return images


@dataclass(frozen=True)
class Distillation:
    """How much of the loss a teacher has, and what is taken from it."""

    teacher: Teacher
    kind: Literal["hard", "soft"] = "hard"
    weight: float = 0.5
    temperature: float = 1.0  # of soft distillation

    def loss(self, logits: Tensor, images: Tensor) -> Tensor:
        """Mean over the images. The square of the temperature keeps the size of the gradient (Hinton et al. 2015)."""
        taught = self.teacher(images)
        if self.kind == "hard":
            return F.cross_entropy(logits, taught.argmax(1))
        warm = self.temperature
        told, said = (taught / warm).log_softmax(1), (logits / warm).log_softmax(1)
        return F.kl_div(said, told, reduction="batchmean", log_target=True) * warm**2


TOP_K = 5  # classes that are told, unless another number is asked for


@dataclass(frozen=True, eq=False)
class Classification(PictureResult):
    """The most probable classes, best first."""

    labels: NDArray[np.int64]  # (k,) places in `classes`
    probabilities: NDArray[np.float64]  # (k,)

    @property
    def names(self) -> list[str]:
        return [self.classes[label] for label in self.labels]

    def to_dict(self) -> dict[str, Any]:
        ranked = zip(self.names, self.probabilities.tolist(), strict=True)
        return {"predictions": [{"class": name, "probability": probability} for name, probability in ranked]}

    def draw(self, *, caption: bool = True) -> Image.Image:
        return labelled(self.picture, self._listed(1)) if caption else enlarge_small(self.picture)[0]

    def summary(self) -> str:
        return self._listed(len(self.labels))

    def _listed(self, count: int) -> str:
        ranked = zip(self.names[:count], self.probabilities.tolist(), strict=False)
        return "   ".join(f"{name} {probability:.1%}" for name, probability in ranked)


GIVE_WAY = 0.8  # share of the pictures without a guide in whose place one with a guide is seen


class LabelledViews(PictureViews):
    """Pictures with their class label."""

    def learnt(self, index: int) -> dict[str, Any]:
        return {"labels": self.images.target(index)["labels"]}


class GuidedViews(LabelledViews):
    """The same, with where a decision about the picture should look.

    Where only a share of the masks is used, most of the other pictures give their turn to one of their class that has a
    mask: a batch of few guided pictures among many that reward the shortcut teaches the shortcut.
    """

    def __init__(self, images: ImageSet, view: GuidedView) -> None:
        super().__init__(images, view.view)
        view.require_classes(images.classes)
        self.guided = view
        scarce = view.objects and view.share < 1
        self.masked: dict[int, list[int]] = {}  # label -> pictures whose masks are used, where not all are
        for index in range(len(images)) if scarce else ():
            if view.uses_mask(images, index):
                self.masked.setdefault(images.target(index)["labels"], []).append(index)
        if scarce and not self.masked:
            raise InputError(
                f"--attend-share {view.share} of the masks of {len(images)} images is none of them, so nothing would "
                "be taught; give a larger share"
            )

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Any]]:
        masked = self.masked.get(self.images.target(index)["labels"]) if self.masked else None
        if masked and not self.guided.uses_mask(self.images, index) and random.random() < GIVE_WAY:  # noqa: S311
            with suppress(ImageError):  # told when it is that picture's own turn; here it would be this one's fault
                return self.guided_sample(random.choice(masked))  # noqa: S311
        return self.guided_sample(index)

    def guided_sample(self, index: int) -> tuple[Tensor, dict[str, Any]]:
        picture = self.images.picture(index, at_least=self.at_least)
        label = self.images.target(index)["labels"]
        pixels, guide = self.guided.of(self.images, index, picture, self.images.classes[label])
        return pixels, {"labels": label, **guide}


class ClassifyTask(Task):
    name, purpose, targets = "classify", "classify", "labels"
    settings = frozenset(
        {
            *(
                "repeats",
                "balance_groups",
                "balance_classes",
                "class_weights",
                "label_smoothing",
                "mixup",
                "cutmix",
                "mixup_switch",
                "augment",
                "erasing",
                "scale",
                "pad",
            ),
            *("crop_ratio", "knn_every", "teacher", "distill", "distill_weight", "distill_temperature"),
            *("attend_to", "attend_away", "attend_weight", "attend_share", "attend_hide", "cluster_faithful"),
        }
    )
    main_metric = "top1"
    shown = ("loss", "top1", "top5", "knn_20")
    on_feature_maps = has_findings = False
    query_fields = ("label",)
    inferences = ("top_k",)
    batch_size = 32
    one_class_remedy = (
        "a classifier needs two or more: add pictures of something else, in a folder of their own beside it, or use "
        "--task detect to find where things are"
    )

    def __init__(
        self,
        classes: tuple[str, ...],
        *,
        label_smoothing: float = 0.0,
        mixup: Mixup | None = None,
        distillation: Distillation | None = None,
        exchange: float = 0.0,
        weights: tuple[float, ...] = (),
    ) -> None:
        """`exchange`: share of pictures with a guide whose ground is another's in training; `weights`: of classes."""
        super().__init__(classes)
        if not 0 <= label_smoothing < 1:
            raise InputError(f"label smoothing {label_smoothing} cannot be used; it must lie between 0 and 1")
        self.label_smoothing = label_smoothing
        self.mixup = mixup if mixup is not None else Mixup()
        self.distillation = distillation
        self.exchange = exchange
        self.weights = weights

    @classmethod
    def from_settings(cls, settings: Any, images: ImageSet) -> Self:
        guided = settings.attend_to or settings.attend_away
        return cls(
            images.classes,
            label_smoothing=settings.label_smoothing,
            mixup=settings.mixing(),
            exchange=settings.attend_hide if guided else 0.0,
            weights=class_weights(images, settings.class_weights),
        )

    def learn_from(self, teacher: Distillation) -> None:
        self.distillation = teacher

    def training_view(self, preprocess: Preprocess, settings: Any) -> PictureView:
        view = settings.augmentation(preprocess)
        if not settings.attend_to and not settings.attend_away:
            return view
        regions = () if settings.attend_away is None else find_regions(settings.attend_away)
        return GuidedView(view, settings.attend_to == "masks", settings.attend_share, regions)

    def evaluation_view(self, preprocess: Preprocess) -> PictureView:
        return preprocess.pixels

    def dataset(self, images: ImageSet, view: PictureView) -> LabelledViews:
        return GuidedViews(images, view) if isinstance(view, GuidedView) else LabelledViews(images, view)

    def augment_batch(self, images: Tensor, targets: Targets, rng: np.random.Generator) -> tuple[Tensor, Targets]:
        if self.exchange:
            images = exchange_grounds(images, targets, self.exchange, rng)
        if not self.mixup.active:
            return images, targets
        mixed = self.mixup(images, targets["labels"], len(self.classes), rng)
        return mixed.images, {"labels": mixed.labels}

    def losses(self, model: nn.Module, images: Tensor, targets: Targets) -> dict[str, Tensor]:
        """`labels` are indices (B,) or, after mixing, shares (B, K); smoothing means the same for both."""
        logits = model(images).float()
        learnt = self.cross_entropy(logits, targets["labels"])
        if self.distillation is None:
            return {"cross_entropy": learnt}
        share = self.distillation.weight
        taught = self.distillation.loss(logits, images)
        return {"cross_entropy": (1 - share) * learnt, "distillation": share * taught}

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean over the images, with the classes' weights."""
        if not self.weights:
            return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        weights = torch.tensor(self.weights, device=logits.device)
        each = F.cross_entropy(logits, labels, weights, reduction="none", label_smoothing=self.label_smoothing)
        return each.mean()  # torch's own divides by the weights in a batch: its pieces would not add up to it

    def predict(self, model: nn.Module, images: Tensor, targets: Targets | None = None) -> list[Prediction]:
        return _ranked(model(images).float(), self.inference.top_k or TOP_K)

    def assess(self, model: nn.Module, images: Tensor, targets: Targets) -> Assessment:
        logits = model(images).float()
        return Assessment({"cross_entropy": F.cross_entropy(logits, targets["labels"])}, _ranked(logits, TOP_K))

    def metric(self) -> Accuracy:
        return Accuracy(self.classes)

    def detailed_metric(self, worst: int) -> DetailedMetrics:
        return DetailedMetrics(self.classes, worst=worst)

    def sample(self, preprocess: Preprocess, picture: Image.Image, target: dict[str, Any]) -> tuple[Tensor, Any]:
        return preprocess.pixels(picture), target

    def result(self, picture: Image.Image, predictions: list[Prediction], targets: list[Targets]) -> Classification:
        (ranked,) = predictions
        return Classification(picture, self.classes, ranked["labels"].numpy(), ranked["scores"].double().numpy())


def _ranked(logits: Tensor, most: int) -> list[Prediction]:
    """The likeliest classes of each image, best first."""
    scores, labels = logits.softmax(-1).topk(min(most, logits.shape[-1]))
    scores, labels = scores.cpu(), labels.cpu()  # one transfer for the whole batch
    return [{"labels": labels[i], "scores": scores[i]} for i in range(len(labels))]


TASK = ClassifyTask
