"""A task of one's own in one file: how many objects are in a picture.

vitreous.tasks.__path__.append(FOLDER_OF_THIS_FILE)
vitreous.train("paca_b0", "shapes", task="count")
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from PIL import Image
from torch import Tensor, nn

from vitreous.attribution.target import Target
from vitreous.data.transforms import Preprocess
from vitreous.tasks.base import Task
from vitreous.tasks.findings import FindingChoice, finding_at
from vitreous.tasks.results import PictureResult

MOST_OBJECTS = 10  # the sigmoid of the model's output is a share of so many


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


@dataclass(frozen=True, eq=False)
class Count(PictureResult):
    objects: float

    def to_dict(self) -> dict[str, Any]:
        return {"objects": self.objects}

    def summary(self) -> str:
        return f"{self.objects:.1f} objects"


class CountTarget(Target):
    def __call__(self, output: Tensor) -> Tensor:
        return output.sigmoid() if self.scale == "probability" else output

    def holds(self, output: Tensor) -> Tensor:
        return output.sigmoid() * MOST_OBJECTS >= 0.5


class CountTask(Task):
    name, purpose, targets = "count", "count objects", "boxes"
    main_metric, metric, model = "exact", ExactCounts, CountingModel

    def training_view(self, preprocess: Preprocess, settings: Any) -> Any:
        return self.evaluation_view(preprocess)

    def evaluation_view(self, preprocess: Preprocess) -> Any:
        return partial(with_count, preprocess)

    def losses(self, model: nn.Module, images: Tensor, targets: dict[str, Any]) -> dict[str, Tensor]:
        return {"squared_error": (model(images).sigmoid() * MOST_OBJECTS - targets["objects"]).square().mean()}

    def predict(self, model: nn.Module, images: Tensor, targets: dict[str, Any]) -> list[dict[str, Tensor]]:
        return [{"objects": one} for one in (model(images).sigmoid() * MOST_OBJECTS).cpu()]

    def result(self, picture: Image.Image, predictions: list[Any], targets: list[Any]) -> Count:
        return Count(picture, self.classes, predictions[0]["objects"].item())

    def choose_finding(self, prediction: dict[str, Tensor], view: Any, query: Any) -> FindingChoice:
        objects = prediction["objects"].item()
        name, share = f"{objects:.1f} objects", objects / MOST_OBJECTS
        findings = [{"rank": 1, "short": "number of objects", "name": name, "score": share}]
        return FindingChoice(findings, finding_at(findings, query.finding or 1), CountTarget())


def with_count(preprocess: Preprocess, picture: Image.Image, target: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    return preprocess.pixels(picture), {"objects": len(target.get("objects", ()))}


TASK = CountTask
