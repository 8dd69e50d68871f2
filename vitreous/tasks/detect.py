"""Boxes around objects, with their classes and, from some heads, their masks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torchvision.ops import box_iou

from vitreous.attribution.target import BoxTarget, Target, box_region
from vitreous.data.annotations import objects_of
from vitreous.data.coco_masks import encode
from vitreous.data.detector_boxes import Found
from vitreous.data.joint import DetectView
from vitreous.data.source import ImageSet
from vitreous.data.transforms import Preprocess
from vitreous.drawing.annotate import draw_objects, enlarge_small
from vitreous.errors import InputError
from vitreous.heads.boxes import Detector, suppress_overlaps
from vitreous.heads.detect import DETECTORS, build_detector, paste_masks
from vitreous.heads.openmmlab.conversion import Conversion
from vitreous.heads.openmmlab.detect import load_detector
from vitreous.metrics.coco import CocoKind, CocoMetric, box_sides
from vitreous.metrics.figures import MetricCollection
from vitreous.tasks.base import Metric, PictureView, Prediction, Targets, TaskWithHead
from vitreous.tasks.findings import (
    ABSENT,
    FindingChoice,
    FindingQuery,
    FindingRow,
    FindingTruth,
    FoundTargets,
    ModelView,
    Point,
    finding_at,
)
from vitreous.tasks.results import MIN_SCORE, CocoResult, count_names, import_supervision

HEADS_WITH_MASKS = ("maskrcnn",)
NEAR_A_BOX = 0.01  # of the longer side of the picture: how far beside a box a click still means it
SAME_OBJECT_IOU = 0.5  # from which on a box counts as found, as in AP50


@dataclass(frozen=True, eq=False)
class Detections(CocoResult):
    """Objects, the surest first; `found[found.scores > 0.5]` are some of them."""

    boxes: NDArray[np.float64]  # (n, 4) x0 y0 x1 y1
    labels: NDArray[np.int64]  # (n,) places in `classes`
    scores: NDArray[np.float64]  # (n,)
    masks: NDArray[np.bool_] | None = None  # (n, H, W)
    min_score: float = MIN_SCORE  # of what is drawn and counted

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, which: Any) -> Self:
        """Some of them: a number, a slice, an array of places or one of booleans."""
        places = np.atleast_1d(np.arange(len(self))[which])
        masks = None if self.masks is None else self.masks[places]
        return replace(
            self, boxes=self.boxes[places], labels=self.labels[places], scores=self.scores[places], masks=masks
        )

    @property
    def names(self) -> list[str]:
        return [self.classes[label] for label in self.labels]

    def kept(self) -> Self:
        return self[self.scores >= self.min_score]

    def coco_rows(self) -> list[dict[str, Any]]:
        sides = box_sides(self.boxes)
        rows: list[dict[str, Any]] = [
            {"category_id": self.category_ids[label], "bbox": side, "score": score}
            for side, label, score in zip(sides, self.labels.tolist(), self.scores.tolist(), strict=True)
        ]
        for row, mask in zip(rows, () if self.masks is None else self.masks, strict=False):
            row["segmentation"] = encode(mask)
        return rows

    def draw(self, *, caption: bool = True) -> Image.Image:
        picture, times = enlarge_small(self.picture)
        shown = self.kept()
        captions = [f"{name} {score:.0%}" for name, score in zip(shown.names, shown.scores.tolist(), strict=True)]
        masks = None if shown.masks is None else shown.masks.repeat(times, 1).repeat(times, 2)
        return draw_objects(picture, shown.boxes * times, shown.labels.tolist(), captions, masks=masks)

    def summary(self) -> str:
        return count_names(self.kept().names, self.min_score)

    def to_supervision(self) -> Any:
        """The same as `supervision.Detections`, for its trackers, counters and drawings."""
        return import_supervision().Detections(
            xyxy=self.boxes.astype(np.float32),
            mask=self.masks,
            confidence=self.scores.astype(np.float32),
            class_id=self.labels.astype(int),
            data={"class_name": np.array(self.names)},
        )


class DetectTask(TaskWithHead):
    name, purpose, targets = "detect", "detect", "boxes"
    settings = TaskWithHead.settings | {"short", "longest", "crop", "rescale"}
    main_metric = "AP"
    shown = ("AP", "AP50", "mask_AP", "mask_AP50")
    heads, usual_head = DETECTORS, "fcos"
    query_fields = ("finding", "label")
    inferences = ("min_score",)

    def __init__(
        self,
        classes: tuple[str, ...],
        *,
        head: str | None = None,
        head_args: Mapping[str, Any] | None = None,
        short: int = 800,
        longest: int = 1333,
        category_ids: tuple[int, ...] = (),
    ) -> None:
        """`short` and `longest` limit the sides of pictures."""
        super().__init__(classes, head, head_args, category_ids)
        self.short, self.longest = short, longest

    @classmethod
    def from_settings(cls, settings: Any, images: ImageSet) -> Self:
        short = max(settings.short, default=images.drawn_side or 800)
        return cls(
            images.classes,
            head=settings.head,
            head_args=settings.head_arguments(),
            short=short,
            longest=settings.longest or round(short * 5 / 3),
            category_ids=images.category_ids,
        )

    def arguments(self) -> dict[str, Any]:
        own = {"short": self.short, "longest": self.longest, "category_ids": self.category_ids}
        return super().arguments() | own

    def resized(self, size: int) -> Self:
        longest = round(self.longest * size / self.short)
        return type(self)(self.classes, **self.arguments() | {"short": size, "longest": longest})

    def input_size(self, preprocess: Preprocess) -> tuple[int, int]:
        return self.short, self.longest

    def model(self, backbone: nn.Module) -> nn.Module:
        return build_detector(backbone, self.head, len(self.classes), **self.head_args)

    @property
    def masks(self) -> bool:
        return self.head in HEADS_WITH_MASKS

    def training_view(self, preprocess: Preprocess, settings: Any) -> PictureView:
        if len(settings.crop) not in (0, 2) or len(settings.rescale) not in (0, 2):
            raise InputError(
                f"--crop {settings.crop} and --rescale {settings.rescale} given; of both, the task detect needs "
                "the least and the most"
            )
        return DetectView(
            preprocess,
            short=settings.short or (self.short,),
            longest=self.longest,
            flip=settings.flip,
            crop=settings.crop or None,
            jitter=settings.color_jitter,
            scale=settings.rescale or (1.0, 1.0),
            masks=self.masks,
        )

    def evaluation_view(self, preprocess: Preprocess) -> PictureView:
        return DetectView(preprocess, short=(self.short,), longest=self.longest, train=False, masks=False)

    def predict(self, model: nn.Module, images: Tensor, targets: Targets) -> list[Prediction]:
        """`boxes`, `labels`, `scores` and `masks` (n, H, W) of each picture, in its own pixels."""
        found = model(images, sizes=targets["sizes"])
        predictions = []
        for one, size, original in zip(found, targets["sizes"], targets["original_sizes"], strict=True):
            height, width = original.tolist()
            boxes = one["boxes"] * (original.to(size) / size).flip(0).repeat(2).to(one["boxes"])
            answer = {"boxes": boxes, "labels": one["labels"], "scores": one["scores"]}
            if "masks" in one:
                answer["masks"] = whole_masks(one["masks"], boxes, (height, width))
            predictions.append({key: value.cpu() for key, value in answer.items()})
        return predictions

    def truth(self, targets: Targets) -> Targets:
        return {key: targets[key] for key in ("objects", "image_ids", "original_sizes")}

    def load_release(self, model: nn.Module, source: Path) -> Conversion:
        assert isinstance(model, Detector)
        return load_detector(model, source)

    def blank_targets(self, picture: Image.Image, found: Sequence[Found]) -> list[Targets]:
        return [{"objects": objects_of([], []), "image_id": 0}]

    def result(self, picture: Image.Image, predictions: list[Prediction], targets: list[Targets]) -> Detections:
        (found,) = predictions
        return Detections(
            picture,
            self.classes,
            self.category_ids,
            boxes=found["boxes"].double().numpy(),
            labels=found["labels"].numpy(),
            scores=found["scores"].double().numpy(),
            masks=found["masks"].numpy() if "masks" in found else None,
            min_score=self.min_score,
        )

    def metric(self) -> Metric:
        kinds: dict[str, CocoKind] = {"": "bbox", "mask_": "segm"} if self.masks else {"": "bbox"}
        return MetricCollection(
            {prefix: CocoMetric(kind, self.classes, self.category_ids) for prefix, kind in kinds.items()}
        )

    # ---- explaining a box ----------------------------------------------------------------------------------------

    def choose_finding(self, prediction: Prediction, view: ModelView, query: FindingQuery) -> FindingChoice:
        findings = self._findings(prediction)
        if not findings:
            return FindingChoice(findings, nothing="the model found no object")
        if query.finding is not None:
            finding = finding_at(findings, query.finding)
        else:
            fitting = [entry for entry in findings if query.label in (None, entry["class"])]
            if not fitting or fitting[0]["score"] < MIN_SCORE:
                kind = query.label or "object"
                best = f"; the best is {fitting[0]['name']}: --finding {fitting[0]['rank']}" if fitting else ""
                return FindingChoice(
                    findings, nothing=f"the model found no {kind} with a score from {MIN_SCORE:g}{best}"
                )
            finding = fitting[0]
        label, box = self.classes.index(finding["class"]), view.scaled(tuple(finding["box"]))
        larger, times = enlarge_small(view.picture)
        marked = draw_objects(larger, np.array([box]) * times, [label], [""])
        target = BoxTarget(labels=torch.tensor([label]), boxes=torch.tensor([box]))
        return FindingChoice(findings, finding, target, marked)

    def _findings(self, prediction: Prediction) -> list[FindingRow]:
        rows = zip(*(prediction[key].tolist() for key in ("boxes", "labels", "scores")), strict=True)
        return [
            {
                "rank": rank,
                "short": f"box {rank}: {self.classes[label]}",
                "name": f"box {rank}: {self.classes[label]} {score:.2f}",
                "class": self.classes[label],
                "score": score,
                "box": box,
            }
            for rank, (box, label, score) in enumerate(rows, 1)
        ]

    def finding_under(self, prediction: Prediction, view: ModelView, point: Point, listed: int) -> int | None:
        """The smallest box around the point, or just beside it: that is the hardest to meet."""
        height, width = view.original
        x, y, near = point[0] * width, point[1] * height, NEAR_A_BOX * max(width, height)
        around = [
            ((right - left) * (bottom - top), finding["rank"])
            for finding in self._findings(prediction)[:listed]
            for left, top, right, bottom in [finding["box"]]
            if left - near <= x <= right + near and top - near <= y <= bottom + near
        ]
        return min(around)[1] if around else None

    def explained_model(self, model: nn.Module, labels: tuple[int, ...], view: ModelView) -> nn.Module:
        assert isinstance(model, Detector)
        return CandidateBoxes(model, labels, view.size)

    def scores_now(self, found: FoundTargets, view: ModelView, model: nn.Module, output: Any) -> list[float]:
        assert isinstance(model, Detector)
        (boxes,) = output
        sure = boxes["scores"] > model.selection.score
        answers = suppress_overlaps(boxes["boxes"][sure], boxes["labels"][sure], boxes["scores"][sure], model.selection)
        return matched_scores([target for _, target in found], answers)

    def truth_view(self, preprocess: Preprocess) -> PictureView:
        return replace(self.evaluation_view(preprocess), masks=True)  # type: ignore[type-var]  # a `DetectView`

    def finding_truth(self, target: Target, known: Targets, size: tuple[int, int]) -> FindingTruth:
        """The object whose box overlaps best, whatever its class: what a map should lie on is what the box holds."""
        assert isinstance(target, BoxTarget)
        single = ~known["crowd"]
        boxes = known["boxes"][single]
        overlap = box_iou(target.boxes.to(boxes), boxes)[0]  # (n,)
        if not len(boxes) or overlap.max() < SAME_OBJECT_IOU:
            return FindingTruth(label=ABSENT)
        best = overlap.argmax()
        if "masks" in known:
            mask = known["masks"][single][best].bool()
        else:
            left, top, right, bottom = boxes[best].tolist()
            outer = math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)  # never without a pixel
            mask = box_region(outer, *size)
        return FindingTruth(mask if mask.any() else None, int(known["labels"][single][best]))


class CandidateBoxes(nn.Module):
    """A detector that gives every box it considers for some classes, for pictures of one size."""

    def __init__(self, detector: Detector, classes: tuple[int, ...], size: tuple[int, int]) -> None:
        super().__init__()
        self.detector, self.classes, self.size = detector, classes, size
        self.eval()

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        return self.detector.all_of(images, self.classes, sizes=torch.tensor([self.size] * len(images)))


def matched_scores(targets: Sequence[Target], answers: dict[str, Tensor]) -> list[float]:
    """For each box, the surest first, the score of the answer most like it that stands for no other; 0 without one.

    An object that is found elsewhere is another one.
    """
    free, scores = torch.ones(len(answers["labels"]), dtype=torch.bool), []
    for target in targets:
        assert isinstance(target, BoxTarget)
        overlap = box_iou(target.boxes.to(answers["boxes"]), answers["boxes"])[0].cpu()
        fits = free & (answers["labels"] == target.labels[0]).cpu() & (overlap >= SAME_OBJECT_IOU)
        if not fits.any():
            scores.append(0.0)
            continue
        # Rounded, as a detector without suppression may give one box many times: then the surest is taken.
        best = int(torch.where(fits, overlap, -1.0).mul(1000).round().argmax())
        free[best] = False
        scores.append(answers["scores"][best].item())
    return scores


def whole_masks(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """(n, M, M) probabilities within boxes as (n, H, W) booleans. Only the pixels of each box are looked at."""
    found = torch.zeros(len(masks), *size, dtype=torch.bool, device=masks.device)
    limit = boxes.new_tensor([size[1], size[0], size[1], size[0]])
    outer = torch.cat([boxes[:, :2].floor(), boxes[:, 2:].ceil()], 1).clamp(min=0).minimum(limit).int().tolist()
    for place, (left, top, right, bottom) in enumerate(outer):
        box = boxes[place : place + 1] - boxes.new_tensor([left, top, left, top])
        part = paste_masks(masks[place : place + 1], box, (bottom - top, right - left))[0]
        found[place, top:bottom, left:right] = part >= 0.5
    return found


TASK = DetectTask
