"""A task of one's own in one file: how many objects are in a picture.

vitreous.tasks.__path__.append(FOLDER_OF_THIS_FILE)
vitreous.train("paca_b0", "shapes", task="count")
"""

import random
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor, nn

from vitreous.attribution.target import Target
from vitreous.data.annotations import objects_of
from vitreous.data.transforms import Preprocess
from vitreous.drawing.annotate import enlarge_small
from vitreous.drawing.panels import labelled
from vitreous.tasks.base import Task
from vitreous.tasks.findings import FindingChoice, finding_at
from vitreous.tasks.results import PictureResult

MOST_OBJECTS = 10  # the sigmoid of the model's output is a share of so many


@dataclass(frozen=True, eq=False)
class Count(PictureResult):
    objects: float

    def to_dict(self) -> dict[str, Any]:
        return {"objects": self.objects}

    def draw(self, *, caption: bool = True) -> Image.Image:
        return labelled(self.picture, self.summary()) if caption else enlarge_small(self.picture)[0]

    def summary(self) -> str:
        return f"{self.objects:.1f} objects"


@dataclass(frozen=True)
class CountView:
    preprocess: Preprocess
    flip: float = 0.0

    def __call__(self, picture: Image.Image, target: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        seen = ImageOps.mirror(picture) if random.random() < self.flip else picture
        return self.preprocess.pixels(seen), {"objects": len(target["objects"])}


class CountingModel(nn.Module):
    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(backbone.feature_info.channels()[-1], 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images)[-1].mean((2, 3)))[:, 0]  # (B,)


class ExactCounts:
    right = images = 0

    def update(self, predictions: list[dict[str, Tensor]], targets: dict[str, Tensor]) -> None:
        pairs = zip(predictions, targets["objects"].tolist(), strict=True)
        self.right += sum(round(one["objects"].item()) == truth for one, truth in pairs)
        self.images += len(predictions)

    def merge(self, other: "ExactCounts") -> None:
        self.right, self.images = self.right + other.right, self.images + other.images

    def compute(self) -> dict[str, float]:
        return {"exact": self.right / self.images}


class CountTarget(Target):
    def __call__(self, output: Tensor) -> Tensor:
        return output.sigmoid() if self.scale == "probability" else output

    def holds(self, output: Tensor) -> Tensor:
        return output.sigmoid() * MOST_OBJECTS >= 0.5


class CountTask(Task):
    name, purpose, targets = "count", "count objects", "boxes"
    main_metric = "exact"
    metric = ExactCounts

    def model(self, backbone: nn.Module) -> nn.Module:
        return CountingModel(backbone)

    def training_view(self, preprocess: Preprocess, settings: Any) -> CountView:
        return CountView(preprocess, settings.flip)

    def evaluation_view(self, preprocess: Preprocess) -> CountView:
        return CountView(preprocess)

    def losses(self, model: nn.Module, images: Tensor, targets: dict[str, Any]) -> dict[str, Tensor]:
        return {"squared_error": F.mse_loss(model(images).sigmoid() * MOST_OBJECTS, targets["objects"].float())}

    def predict(self, model: nn.Module, images: Tensor, targets: dict[str, Any]) -> list[dict[str, Tensor]]:
        return [{"objects": one} for one in (model(images).sigmoid() * MOST_OBJECTS).cpu()]

    def blank_targets(self, picture: Image.Image, found: Any) -> list[dict[str, Any]]:
        return [{"objects": objects_of([], [])}]

    def result(self, picture: Image.Image, predictions: list[Any], targets: list[Any]) -> Count:
        return Count(picture, self.classes, predictions[0]["objects"].item())

    def choose_finding(self, prediction: dict[str, Tensor], view: Any, query: Any) -> FindingChoice:
        objects = prediction["objects"].item()
        name, share = f"{objects:.1f} objects", objects / MOST_OBJECTS
        findings = [{"rank": 1, "short": "number of objects", "name": name, "score": share}]
        return FindingChoice(findings, finding_at(findings, query.finding or 1), CountTarget())


TASK = CountTask
