"""Named points of an object, found in a crop around its box."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from PIL import Image
from torch import Tensor, nn

from vitreous.data.annotations import OneBoxEach, object_in_box
from vitreous.data.detector_boxes import Found
from vitreous.data.joint import KeypointView
from vitreous.data.source import ImageSet
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.heads.keypoints import SimpleBaseline, build_keypoints, decode_keypoints, flip_test
from vitreous.heads.openmmlab.conversion import Conversion
from vitreous.heads.openmmlab.segment import load_keypoints
from vitreous.metrics.coco import CocoMetric
from vitreous.metrics.keypoints import PCK
from vitreous.metrics.together import Together
from vitreous.tasks.base import Metric, Prediction, Targets, View, WithHead

Pairs = tuple[tuple[int, int], ...]


class Keypoints(WithHead):
    name, purpose, targets = "keypoints", "find keypoints", "keypoints"
    settings = WithHead.settings | {"crop", "rescale", "rotation"}
    main_metric = "PCK@0.1"
    shown = ("PCK@0.1", "keypoint_AP")
    heads, usual_head = ("heatmaps",), "heatmaps"
    inferences = ("flip",)

    def __init__(
        self,
        classes: tuple[str, ...],
        *,
        head: str | None = None,
        head_args: Mapping[str, Any] | None = None,
        crop: tuple[int, int] = (256, 192),
        names: tuple[str, ...] = (),
        pairs: Pairs = (),
        skeleton: Pairs = (),
        category_ids: tuple[int, ...] = (),
    ) -> None:
        """`names` are the keypoints', `pairs` those that trade places in a mirror, `skeleton` what drawings join."""
        super().__init__(classes, head, head_args)
        if not names:
            raise InputError(
                "the data have no keypoints; the task keypoints needs COCO annotations with them, or shapes"
            )
        self.crop, self.names, self.pairs, self.skeleton = crop, names, pairs, skeleton
        self.category_ids = category_ids or self.category_ids

    @classmethod
    def from_settings(cls, settings: Any, images: ImageSet) -> Self:
        if len(settings.crop) not in (0, 2):
            raise InputError(f"--crop {settings.crop} given; the task keypoints needs a height and a width")
        return cls(
            images.classes,
            head=settings.head,
            head_args=settings.head_arguments(),
            crop=settings.crop or (256, 192),
            names=images.keypoint_names,
            pairs=images.keypoint_pairs,
            skeleton=images.skeleton,
            category_ids=images.category_ids,
        )

    def arguments(self) -> dict[str, Any]:
        points = {"names": self.names, "pairs": self.pairs, "skeleton": self.skeleton}
        return super().arguments() | {"crop": self.crop} | points | {"category_ids": self.category_ids}

    def resized(self, size: int) -> Self:
        width = round(size * self.crop[1] / self.crop[0] / 4) * 4
        return type(self)(self.classes, **self.arguments() | {"crop": (size, width)})

    def input_size(self, preprocess: Preprocess) -> tuple[int, int]:
        return self.crop

    def model(self, backbone: nn.Module) -> nn.Module:
        return build_keypoints(backbone, len(self.names), **self.head_args)

    def training_view(self, preprocess: Preprocess, settings: Any) -> View:
        if len(settings.rescale) > 1:
            raise InputError(f"--rescale {settings.rescale} given; the task keypoints needs one share, such as 0.3")
        (scale,) = settings.rescale or (0.0,)
        return KeypointView(preprocess, self.crop, settings.flip, settings.rotation, scale)

    def evaluation_view(self, preprocess: Preprocess) -> View:
        return KeypointView(preprocess, self.crop, train=False)

    def predict(self, model: nn.Module, images: Tensor, targets: Targets) -> list[Prediction]:
        """`keypoints` (K, 3) of each object: x and y in pixels of its picture, and how sure.

        `scores` is their mean, times how sure a detector was of the object, if one found it: as is usual where a
        detector goes first.
        """
        heatmaps = flip_test(model, images, self.pairs) if self.inference.flip else model(images)
        points = decode_keypoints(heatmaps, targets["to_picture"]).cpu()
        sure = targets["box_scores"].cpu() if "box_scores" in targets else points.new_ones(len(points))
        return [{"keypoints": one, "scores": one[:, 2].mean() * s} for one, s in zip(points, sure, strict=True)]

    def load_release(self, model: nn.Module, source: Path) -> Conversion:
        assert isinstance(model, SimpleBaseline)
        return load_keypoints(model, source)

    def questions(self, picture: Image.Image, found: Sequence[Found]) -> list[dict[str, Any]]:
        """One for each object; a picture of which nothing is known is taken for one object of the first class."""
        seen = found or [Found((0.0, 0.0, picture.width, picture.height), 0)]
        return [
            {"objects": object_in_box(one, len(self.names), number), "image_id": 0, "box_score": one.score}
            for number, one in enumerate(seen, 1)
        ]

    def rows(self, prediction: Prediction, question: dict[str, Any]) -> list[dict[str, Any]]:
        points, objects = prediction["keypoints"].double(), question["objects"]
        side = [*objects.boxes[0, :2].tolist(), *(objects.boxes[0, 2:] - objects.boxes[0, :2]).tolist()]
        category, score = self.category_ids[int(objects.labels[0])], float(prediction["scores"])
        return [{"category_id": category, "keypoints": points.flatten().tolist(), "score": score, "bbox": side}]

    def metric(self) -> Metric:
        coco = CocoMetric("keypoints", self.classes, self.category_ids)
        return Together({"": PCK(self.names), "keypoint_": coco})

    def metric_on_boxes(self, images: OneBoxEach) -> Metric:
        """For boxes of a detector, of which nobody knows whose they are: COCO's figures, without PCK."""
        coco = CocoMetric("keypoints", self.classes, self.category_ids)
        for image, objects in images.without_boxes():
            coco.expect(image, objects)
        return Together({"keypoint_": coco})


TASK = Keypoints
