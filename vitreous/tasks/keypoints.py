"""Named points of an object, found in a crop around its box."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from vitreous.attribution.target import JointTarget, Target
from vitreous.data.annotations import OneBoxEach, object_in_box
from vitreous.data.detector_boxes import Found
from vitreous.data.keypoint_view import KeypointView
from vitreous.data.source import ImageSet
from vitreous.data.transforms import Preprocess
from vitreous.drawing.annotate import draw_keypoints, draw_place, enlarge_small
from vitreous.errors import InputError
from vitreous.heads.keypoints import SimpleBaseline, build_keypoints, decode_keypoints, flip_test
from vitreous.heads.openmmlab.conversion import Conversion
from vitreous.heads.openmmlab.segment import load_keypoints
from vitreous.metrics.coco import CocoMetric, box_sides
from vitreous.metrics.figures import MetricCollection
from vitreous.metrics.keypoints import PCK
from vitreous.tasks.base import Metric, PictureView, Prediction, Targets, TaskWithHead
from vitreous.tasks.findings import (
    ABSENT,
    FindingChoice,
    FindingQuery,
    FindingTruth,
    FoundTargets,
    ModelView,
    Point,
    finding_at,
)
from vitreous.tasks.results import MIN_SCORE, CocoResult, count_names, import_supervision

JointPairs = tuple[tuple[int, int], ...]
FOUND_WITHIN = 0.1  # of the larger side of the object: how far from its place a joint counts as found, as in PCK@0.1


@dataclass(frozen=True, eq=False)
class Keypoints(CocoResult):
    """Named points of one or more objects."""

    points: NDArray[np.float64]  # (n, K, 3) x, y and how sure
    scores: NDArray[np.float64]  # (n,) of the objects
    boxes: NDArray[np.float64]  # (n, 4) x0 y0 x1 y1, in which they were looked for
    labels: NDArray[np.int64]  # (n,) places in `classes`
    joints: tuple[str, ...]  # names of the K points
    skeleton: JointPairs = field(default=(), repr=False)  # what drawings join
    min_score: float = MIN_SCORE  # of what is drawn and counted

    def __len__(self) -> int:
        return len(self.points)

    @property
    def names(self) -> list[str]:
        """Classes of the objects."""
        return [self.classes[label] for label in self.labels]

    def coco_rows(self) -> list[dict[str, Any]]:
        sides = box_sides(self.boxes)
        rows = zip(self.labels, self.points, self.scores.tolist(), sides, strict=True)
        return [
            {
                "category_id": self.category_ids[label],
                "keypoints": points.flatten().tolist(),
                "score": score,
                "bbox": side,
            }
            for label, points, score, side in rows
        ]

    def draw(self, *, caption: bool = True) -> Image.Image:
        picture, times = enlarge_small(self.picture)
        return draw_keypoints(picture, self.points * (times, times, 1), self.skeleton, min_score=self.min_score)

    def summary(self) -> str:
        shown = self.scores >= self.min_score
        return count_names([name for name, sure in zip(self.names, shown, strict=True) if sure], self.min_score)

    def to_supervision(self) -> Any:
        """The same as `supervision.KeyPoints`, for its drawings."""
        return import_supervision().KeyPoints(
            xy=self.points[..., :2].astype(np.float32),
            keypoint_confidence=self.points[..., 2].astype(np.float32),
            detection_confidence=self.scores.astype(np.float32),
            class_id=self.labels.astype(int),
            data={"class_name": np.array(self.names)},
        )


class KeypointsTask(TaskWithHead):
    name, purpose, targets = "keypoints", "find keypoints", "keypoints"
    settings = TaskWithHead.settings | {"crop", "rescale", "rotation"}
    main_metric = "PCK@0.1"
    shown = ("PCK@0.1", "keypoint_AP")
    heads, usual_head = ("heatmaps",), "heatmaps"
    query_fields = ("finding", "joint")
    inferences = ("flip", "min_score", "boxes")

    def __init__(
        self,
        classes: tuple[str, ...],
        *,
        head: str | None = None,
        head_args: Mapping[str, Any] | None = None,
        crop: tuple[int, int] = (256, 192),
        names: tuple[str, ...] = (),
        pairs: JointPairs = (),
        skeleton: JointPairs = (),
        category_ids: tuple[int, ...] = (),
    ) -> None:
        """`names` are the keypoints', `pairs` those that trade places in a mirror, `skeleton` what drawings join."""
        super().__init__(classes, head, head_args, category_ids)
        if not names:
            raise InputError(
                "the data have no keypoints; the task keypoints needs COCO annotations with them, or shapes"
            )
        self.crop, self.names, self.pairs, self.skeleton = crop, names, pairs, skeleton

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
        return super().arguments() | {"crop": self.crop, **points, "category_ids": self.category_ids}

    def resized(self, size: int) -> Self:
        width = round(size * self.crop[1] / self.crop[0] / 4) * 4
        return type(self)(self.classes, **self.arguments() | {"crop": (size, width)})

    def input_size(self, preprocess: Preprocess) -> tuple[int, int]:
        return self.crop

    def model(self, backbone: nn.Module) -> nn.Module:
        return build_keypoints(backbone, len(self.names), **self.head_args)

    def training_view(self, preprocess: Preprocess, settings: Any) -> PictureView:
        if len(settings.rescale) > 1:
            raise InputError(f"--rescale {settings.rescale} given; the task keypoints needs one share, such as 0.3")
        (scale,) = settings.rescale or (0.0,)
        return KeypointView(preprocess, self.crop, settings.flip, settings.rotation, scale)

    def evaluation_view(self, preprocess: Preprocess) -> PictureView:
        return KeypointView(preprocess, self.crop, train=False)

    def predict(self, model: nn.Module, images: Tensor, targets: Targets) -> list[Prediction]:
        """`keypoints` (K, 3) of each object: x and y in pixels of its picture, and how sure.

        `scores` is their mean, times how sure a detector was of the object, if one found it: as is usual where a
        detector goes first. `peaks` (K, 2) are row and column in the heat maps, `grid` is these maps' size.
        """
        heatmaps = flip_test(model, images, self.pairs) if self.inference.flip else model(images)
        points = decode_keypoints(heatmaps, targets["to_picture"]).cpu()
        sure = targets["box_scores"].cpu() if "box_scores" in targets else points.new_ones(len(points))
        peaks = torch.stack(torch.unravel_index(heatmaps.flatten(2).argmax(2), heatmaps.shape[2:]), -1).cpu()
        grid = torch.tensor(heatmaps.shape[2:])
        return [
            {"keypoints": one, "scores": one[:, 2].mean() * score, "peaks": peak, "grid": grid}
            for one, score, peak in zip(points, sure, peaks, strict=True)
        ]

    def load_release(self, model: nn.Module, source: Path) -> Conversion:
        assert isinstance(model, SimpleBaseline)
        return load_keypoints(model, source)

    def blank_targets(self, picture: Image.Image, found: Sequence[Found]) -> list[Targets]:
        """One for each object; a picture of which nothing is known is taken for one object of the first class."""
        objects = found or [Found((0.0, 0.0, picture.width, picture.height), 0)]
        return [
            {"objects": object_in_box(one, len(self.names), number), "image_id": 0, "box_score": one.score}
            for number, one in enumerate(objects, 1)
        ]

    def result(self, picture: Image.Image, predictions: list[Prediction], targets: list[Targets]) -> Keypoints:
        objects = [target["objects"] for target in targets]
        points = [one["keypoints"].double().numpy() for one in predictions]
        return Keypoints(
            picture,
            self.classes,
            self.category_ids,
            points=np.array(points).reshape(-1, len(self.names), 3),
            scores=np.array([float(one["scores"]) for one in predictions]),
            boxes=np.array([one.boxes[0] for one in objects]).reshape(-1, 4),
            labels=np.array([one.labels[0] for one in objects], np.int64),
            joints=self.names,
            skeleton=self.skeleton,
            min_score=self.min_score,
        )

    def metric(self) -> Metric:
        coco = CocoMetric("keypoints", self.classes, self.category_ids)
        return MetricCollection({"": PCK(self.names), "keypoint_": coco})

    def metric_on_boxes(self, images: OneBoxEach) -> Metric:
        """For boxes of a detector, of which nobody knows whose they are: COCO's figures, without PCK."""
        coco = CocoMetric("keypoints", self.classes, self.category_ids)
        for image, objects in images.without_boxes():
            coco.expect(image, objects)
        return MetricCollection({"keypoint_": coco})

    def check_data(self, images: ImageSet) -> None:
        if images.keypoint_names != self.names:
            raise InputError(
                f"the joints of the data ({', '.join(images.keypoint_names)}) are not those of the model "
                f"({', '.join(self.names)})"
            )

    # ---- explaining a joint --------------------------------------------------------------------------------------

    @property
    def finding_names(self) -> tuple[str, ...]:
        return self.names

    def choose_finding(self, prediction: Prediction, view: ModelView, query: FindingQuery) -> FindingChoice:
        points = prediction["keypoints"].tolist()
        order = sorted(range(len(points)), key=lambda joint: -points[joint][2])
        findings = [
            {
                "rank": rank,
                "short": f"joint {rank}: {self.names[joint]}",
                "name": f"joint {rank}: {self.names[joint]} {points[joint][2]:.2f}",
                "joint": self.names[joint],
                "score": points[joint][2],
                "place": points[joint][:2],
            }
            for rank, joint in enumerate(order, 1)
        ]
        rank = 1 + order.index(self.names.index(query.joint)) if query.joint is not None else query.finding or 1
        finding = finding_at(findings, rank)
        joint = order[rank - 1]
        peak = prediction["peaks"][joint]
        larger, times = enlarge_small(view.picture)
        cell = view.picture.height / int(prediction["grid"][0])  # pixels
        row, column = peak.tolist()
        marked = draw_place(larger, ((column + 0.5) * cell * times, (row + 0.5) * cell * times), joint)
        # A copy: what was made in inference mode cannot take part in gradients.
        target = JointTarget(joints=torch.tensor([joint]), places=peak[None].clone())
        return FindingChoice(findings, finding, target, marked)

    def finding_under(self, prediction: Prediction, view: ModelView, point: Point, listed: int) -> int | None:
        """The nearest joint."""
        scores = prediction["keypoints"][:, 2].tolist()
        order = sorted(range(len(scores)), key=lambda joint: -scores[joint])
        places = (prediction["peaks"] + 0.5) / prediction["grid"]  # row and column, in shares
        distances = (places - torch.tensor(point[::-1])).square().sum(1)
        return 1 + order.index(int(distances.argmin()))

    def scores_now(self, found: FoundTargets, view: ModelView, model: nn.Module, output: Any) -> list[float]:
        return [target.on("logit")(output).item() for _, target in found]

    def finding_truth(self, target: Target, known: Targets, size: tuple[int, int]) -> FindingTruth:
        """A disc around the joint, within which it counts as found. A joint has no outline of its own."""
        assert isinstance(target, JointTarget)
        assert target.places is not None
        joint = int(target.joints[0])
        x, y, visibility = known["keypoints"][joint].tolist()
        if not visibility:
            return FindingTruth(outlined=False)
        left, top, right, bottom = known["boxes"].tolist()
        (height, width), (rows, columns) = size, known["heatmaps"].shape[1:]
        across, down = torch.meshgrid(torch.arange(width) + 0.5, torch.arange(height) + 0.5, indexing="xy")
        place = torch.stack([across, down, torch.ones_like(down)], -1) @ known["to_picture"].T  # (h, w, 2)
        mask = torch.hypot(place[..., 0] - x, place[..., 1] - y) <= FOUND_WITHIN * max(right - left, bottom - top)
        row, column = target.places[0].tolist()
        found = mask[int((row + 0.5) * height / rows), int((column + 0.5) * width / columns)]
        return FindingTruth(mask if mask.any() else None, joint if found else ABSENT, outlined=False)


TASK = KeypointsTask
