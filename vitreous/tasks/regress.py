"""A number for each image, such as a score or an age, learned in units of its spread over the training images."""

from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any, Self

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from vitreous.attribution.target import Target, at_least_float32
from vitreous.data.source import ImageSet
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.metrics.regression import RegressionErrors
from vitreous.tasks.base import Assessment, PictureView, PictureViews, Prediction, Targets, Task
from vitreous.tasks.findings import FindingChoice, FindingQuery, ModelView, finding_at
from vitreous.tasks.results import PictureResult

SAME_WITHIN = 0.5  # spreads by which an answer may move and still count as the same


@dataclass(frozen=True, eq=False)
class Estimate(PictureResult):
    """The number, in the unit of the data."""

    value: float

    def to_dict(self) -> dict[str, Any]:
        return {"predictions": [{"value": self.value}]}

    def summary(self) -> str:
        return f"{self.value:.4g}"


@dataclass(frozen=True, eq=False)
class ValueTarget(Target):
    """The number itself, in spreads from the mean; as a probability, where it lies between low and high answers."""

    first: Tensor = None  # type: ignore[assignment]  # (B,), required: what the model said of the whole image

    def __call__(self, output: Tensor) -> Tensor:
        value = at_least_float32(output)[:, 0]
        return value.sigmoid() if self.scale == "probability" else value

    def holds(self, output: Tensor) -> Tensor:
        return (output[:, 0] - self.first).abs() <= SAME_WITHIN


class ValueViews(PictureViews):
    """Pictures with their number."""

    def learnt(self, index: int) -> dict[str, Any]:
        return {"value": torch.tensor(self.images.target(index)["value"])}


class RegressTask(Task):
    name, purpose, targets = "regress", "estimate a number", "values"
    settings = frozenset({"repeats", "augment", "erasing", "scale", "pad", "crop_ratio"})
    main_metric = "R2"
    on_feature_maps = False
    like_classification = True
    batch_size = 32

    def __init__(self, classes: tuple[str, ...], *, mean: float = 0.0, spread: float = 1.0) -> None:
        """`mean` and `spread`, the standard deviation, are those of the training images."""
        super().__init__(classes)
        self.mean, self.spread = mean, spread

    @classmethod
    def from_settings(cls, settings: Any, images: ImageSet) -> Self:
        values = [images.target(index)["value"] for index in range(len(images))]
        spread = pstdev(values)
        if not spread > 0:
            raise InputError(
                f"all {len(values)} training images have the value {values[0]:g}, so that there is nothing to learn"
            )
        return cls(images.classes, mean=fmean(values), spread=spread)

    def arguments(self) -> dict[str, Any]:
        return {"mean": self.mean, "spread": self.spread}

    def training_view(self, preprocess: Preprocess, settings: Any) -> PictureView:
        return settings.augmentation(preprocess)

    def evaluation_view(self, preprocess: Preprocess) -> PictureView:
        return preprocess.pixels

    def dataset(self, images: ImageSet, view: PictureView) -> ValueViews:
        return ValueViews(images, view)

    def losses(self, model: nn.Module, images: Tensor, targets: Targets) -> dict[str, Tensor]:
        return {"squared_error": F.mse_loss(model(images).float()[:, 0], self._in_spreads(targets["value"]))}

    def predict(self, model: nn.Module, images: Tensor, targets: Targets | None = None) -> list[Prediction]:
        return self._answers(model(images).float())

    def assess(self, model: nn.Module, images: Tensor, targets: Targets) -> Assessment:
        output = model(images).float()
        loss = F.mse_loss(output[:, 0], self._in_spreads(targets["value"]))
        return Assessment({"squared_error": loss}, self._answers(output))

    def _in_spreads(self, values: Tensor) -> Tensor:
        return ((values.double() - self.mean) / self.spread).float()

    def _answers(self, output: Tensor) -> list[Prediction]:
        return [{"value": one.double() * self.spread + self.mean, "spreads": one} for one in output[:, 0].cpu()]

    def metric(self) -> RegressionErrors:
        return RegressionErrors()

    # ---- answering and explaining ------------------------------------------------------------------------------------

    def sample(self, preprocess: Preprocess, picture: Image.Image, target: dict[str, Any]) -> tuple[Tensor, Any]:
        return preprocess.pixels(picture), target

    def result(self, picture: Image.Image, predictions: list[Prediction], targets: list[Targets]) -> Estimate:
        return Estimate(picture, self.classes, float(predictions[0]["value"]))

    def choose_finding(self, prediction: Prediction, view: ModelView, query: FindingQuery) -> FindingChoice:
        value, spreads = float(prediction["value"]), prediction["spreads"]
        finding = {"rank": 1, "short": "value", "name": f"{value:.4g}", "score": float(spreads.sigmoid())}
        return FindingChoice([finding], finding_at([finding], query.finding or 1), ValueTarget(first=spreads[None]))

    def truth_view(self, preprocess: Preprocess) -> PictureView:
        return lambda picture, target: (preprocess.pixels(picture), target)


TASK = RegressTask
