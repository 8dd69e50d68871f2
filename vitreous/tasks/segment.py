"""A class for every pixel."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from vitreous.attribution.target import RegionTarget, Target, box_region, dense_logits
from vitreous.data.coco_masks import encode
from vitreous.data.detector_boxes import Found
from vitreous.data.joint import IGNORE, SegmentView
from vitreous.data.source import ImageSet
from vitreous.data.transforms import Preprocess
from vitreous.drawing.annotate import BACKGROUND_NAME, draw_classes, draw_outline, enlarge_small, with_legend
from vitreous.errors import InputError
from vitreous.heads.openmmlab.conversion import Conversion
from vitreous.heads.openmmlab.segment import load_segmenter
from vitreous.heads.segment import SEGMENTERS, Segmenter, best_classes, build_segmenter, multi_scale, sliding_window
from vitreous.layers.patch import resize
from vitreous.metrics.segmentation import SegmentationMetric
from vitreous.tasks.base import PictureView, Prediction, Targets, TaskWithHead
from vitreous.tasks.findings import (
    FindingChoice,
    FindingQuery,
    FindingRow,
    FindingTruth,
    FoundTargets,
    ModelView,
    Point,
    finding_at,
)
from vitreous.tasks.results import CocoResult


@dataclass(frozen=True, eq=False)
class Segmentation(CocoResult):
    """A class for every pixel."""

    labels: NDArray[np.uint8]  # (H, W) places in `classes`

    @property
    def names(self) -> list[str]:
        """The classes that are there."""
        return [self.classes[label] for label in np.unique(self.labels).tolist()]

    def coco_rows(self) -> list[dict[str, Any]]:
        """One for each class that is there."""
        return [
            {"category_id": self.category_ids[label], "segmentation": encode(self.labels == label), "score": 1.0}
            for label in np.unique(self.labels).tolist()
        ]

    def draw(self, *, caption: bool = True) -> Image.Image:
        picture, times = enlarge_small(self.picture)
        drawing = draw_classes(picture, self.labels.repeat(times, 0).repeat(times, 1), self.classes)
        return with_legend(drawing, self.labels, self.classes) if caption else drawing

    def summary(self) -> str:
        return ", ".join(self.names)

    def more_pictures(self) -> dict[str, Image.Image]:
        return {"labels": Image.fromarray(self.labels)}


class SegmentTask(TaskWithHead):
    name, purpose, targets = "segment", "segment", "semantic"
    settings = TaskWithHead.settings | {"short", "crop", "rescale", "ignore", "reduce_zero_label"}
    main_metric = "mIoU"
    heads, usual_head = SEGMENTERS, "fpn"
    query_fields = ("finding", "label", "region")
    inferences = ("flip", "scales", "slide")
    one_class_remedy = "a segmenter needs two or more: give what is around the objects a value of its own in the masks"

    def __init__(
        self,
        classes: tuple[str, ...],
        *,
        head: str | None = None,
        head_args: Mapping[str, Any] | None = None,
        short: int = 512,
        crop: tuple[int, int] = (512, 512),
        ignore: tuple[int, ...] = (),
        reduce_zero_label: bool = False,
    ) -> None:
        """`short` is the shorter side of whole pictures, `crop` the height and width of what is cut out to train.

        `ignore` and `reduce_zero_label` say which values of the label pictures it was trained on stand for no class.
        """
        super().__init__(classes, head, head_args)
        self.short, self.crop = short, crop
        self.ignore, self.reduce_zero_label = ignore, reduce_zero_label

    @classmethod
    def from_settings(cls, settings: Any, images: ImageSet) -> Self:
        if len(settings.crop) not in (0, 2):
            raise InputError(f"--crop {settings.crop} given; the task segment needs a height and a width")
        short = max(settings.short, default=images.drawn_side or 512)
        return cls(
            images.classes,
            head=settings.head,
            head_args=settings.head_arguments(),
            short=short,
            crop=settings.crop or (short, short),
            ignore=settings.ignore,
            reduce_zero_label=settings.reduce_zero_label,
        )

    def arguments(self) -> dict[str, Any]:
        values = {"ignore": self.ignore, "reduce_zero_label": self.reduce_zero_label}
        return super().arguments() | {"short": self.short, "crop": self.crop, **values}

    def reading(self) -> dict[str, Any]:
        return {"ignore": self.ignore or None, "reduce_zero_label": self.reduce_zero_label}

    def resized(self, size: int) -> Self:
        return type(self)(self.classes, **self.arguments() | {"short": size})

    def input_size(self, preprocess: Preprocess) -> tuple[int, int]:
        return self.short, 4 * self.short

    def model(self, backbone: nn.Module) -> nn.Module:
        return build_segmenter(backbone, self.head, len(self.classes), **self.head_args)

    def training_view(self, preprocess: Preprocess, settings: Any) -> PictureView:
        ratio = settings.rescale or (0.5, 2.0)
        return SegmentView(preprocess, self.crop, ratio, settings.flip, settings.color_jitter, short=self.short)

    def evaluation_view(self, preprocess: Preprocess) -> PictureView:
        return SegmentView(preprocess, self.crop, short=self.short, train=False)

    def predict(self, model: nn.Module, images: Tensor, targets: Targets) -> list[Prediction]:
        """`semantic` (H, W) of each picture at its own size."""
        padded, sizes = images.shape[2:], (targets[key].tolist() for key in ("sizes", "original_sizes"))
        pictures = zip(self.logits(model, images), *sizes, strict=True)
        return [{"semantic": labels_of(one, padded, size, whole).cpu()} for one, size, whole in pictures]

    def logits(self, model: nn.Module, images: Tensor) -> Tensor:
        """(B, K, h, w) of the padded images, at the size at which the model answers.

        Of several views, their mean at the size of the images; as probabilities if they have scales.
        """
        if not (self.inference.slide or self.inference.flip or self.inference.scales):
            assert isinstance(model, Segmenter)
            return model.output(images, auxiliary=False).logits
        logits_of: Any = model
        if self.inference.slide:
            height, width = (max(1, 2 * side // 3) for side in self.crop)
            logits_of = partial(sliding_window, model, crop=self.crop, stride=(height, width))
        if self.inference.flip or self.inference.scales:
            return multi_scale(logits_of, images, self.inference.scales or (1.0,), flip=self.inference.flip)
        return logits_of(images)

    def truth(self, targets: Targets) -> Targets:
        return {"semantic": targets["original_semantic"]}

    def load_release(self, model: nn.Module, source: Path) -> Conversion:
        assert isinstance(model, Segmenter)
        return load_segmenter(model, source)

    def blank_targets(self, picture: Image.Image, found: Sequence[Found]) -> list[Targets]:
        return [{"semantic": np.full((picture.height, picture.width), IGNORE, np.uint8)}]

    def result(self, picture: Image.Image, predictions: list[Prediction], targets: list[Targets]) -> Segmentation:
        (found,) = predictions
        return Segmentation(picture, self.classes, self.category_ids, found["semantic"].numpy())

    def metric(self) -> SegmentationMetric:
        return SegmentationMetric(self.classes)

    # ---- explaining a region -------------------------------------------------------------------------------------

    def choose_finding(self, prediction: Prediction, view: ModelView, query: FindingQuery) -> FindingChoice:
        """The largest connected region of a class, or what lies in the region that was given."""
        semantic = prediction["semantic"]
        findings = self._findings(semantic)
        if query.region is not None:
            return self._choose_given_region(semantic, view, query, findings)
        if query.finding is not None:
            finding = finding_at(findings, query.finding)
        else:
            name = query.label or findings[0]["class"]
            fitting = [entry for entry in findings if entry["class"] == name]
            if not fitting:
                return FindingChoice(findings, nothing=f"the model gives no pixel to {name}")
            if query.label is None and name == BACKGROUND_NAME:
                told = "the model sees nothing but background; --label background explains that"
                return FindingChoice(findings, nothing=told)
            finding = fitting[0]
        label = self.classes.index(finding["class"])
        small = F.interpolate(semantic[None, None].float(), view.size, mode="nearest-exact")[0, 0]
        if not (small == label).any():  # a few pixels of a large picture
            told = f"{finding['class']} covers too little to be seen at the model's size"
            return FindingChoice(findings, nothing=told)
        return _outlined(view, findings, finding, label, largest_part(small == label))

    def _findings(self, semantic: Tensor) -> list[FindingRow]:
        """Classes by the share of the picture that they cover; background comes last, whatever it covers."""
        labels, counts = semantic.flatten().long().unique(return_counts=True)
        covered = zip(labels.tolist(), counts.tolist(), strict=True)
        order = sorted(covered, key=lambda pair: (self.classes[pair[0]] == BACKGROUND_NAME, -pair[1]))
        return [
            {
                "rank": rank,
                "short": f"region {rank}: {self.classes[label]}",
                "name": f"region {rank}: {self.classes[label]}, {count / semantic.numel():.0%} of the picture",
                "class": self.classes[label],
                "share": count / semantic.numel(),
            }
            for rank, (label, count) in enumerate(order, 1)
        ]

    def finding_under(self, prediction: Prediction, view: ModelView, point: Point, listed: int) -> int | None:
        """The class of the pixel."""
        semantic = prediction["semantic"]
        column, row = (
            min(int(share * side), side - 1) for share, side in zip(point, reversed(semantic.shape), strict=True)
        )
        there = self.classes[int(semantic[row, column])]
        return next(finding["rank"] for finding in self._findings(semantic) if finding["class"] == there)

    def _choose_given_region(
        self, semantic: Tensor, view: ModelView, query: FindingQuery, findings: list[FindingRow]
    ) -> FindingChoice:
        assert query.region is not None
        inside = semantic[box_region(query.region, *view.original)].long()  # refuses what lies outside
        label = int(inside.bincount().argmax()) if query.label is None else self.classes.index(query.label)
        left, top, right, bottom = view.scaled(query.region)
        outer = math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)  # never without a pixel
        name = self.classes[label]
        where = ",".join(f"{side:g}" for side in query.region)
        finding = {"rank": None, "name": f"{name} in the region {where}", "class": name, "region": list(query.region)}
        return _outlined(view, findings, finding, label, box_region(outer, *view.size))

    def scores_now(self, found: FoundTargets, view: ModelView, model: nn.Module, output: Any) -> list[float]:
        semantic = labels_of(dense_logits(output)[0], view.padded, view.size, view.original)
        return [(semantic == self.classes.index(finding["class"])).double().mean().item() for finding, _ in found]

    def finding_truth(self, target: Target, known: Targets, size: tuple[int, int]) -> FindingTruth:
        """The true parts of the class that the region meets: others of its kind elsewhere are not what was found."""
        assert isinstance(target, RegionTarget)
        semantic = known["semantic"]
        region = target.region[0, : size[0], : size[1]].bool()
        within = semantic[region & (semantic != IGNORE)]
        if not len(within):
            return FindingTruth()
        there = semantic == target.labels[0]
        parts = connected_parts(there)
        mask = there & torch.isin(parts, parts[there & region])
        return FindingTruth(mask if mask.any() else None, int(within.bincount().argmax()))


def _outlined(
    view: ModelView, findings: list[FindingRow], finding: FindingRow, label: int, region: Tensor
) -> FindingChoice:
    marked = draw_outline(enlarge_small(view.picture)[0], region.numpy(), label)
    target = RegionTarget(labels=torch.tensor([label]), region=view.pad(region))
    return FindingChoice(findings, finding, target, marked)


def largest_part(mask: Tensor) -> Tensor:
    """The largest connected part of a mask (h, w)."""
    parts = connected_parts(mask)
    return mask & (parts == parts[mask].mode().values)


def connected_parts(mask: Tensor) -> Tensor:
    """For every pixel the number of its connected part, corners included, -1 outside: (h, w).

    Every pixel points to the pixel of its part with the highest number that is known so far; following the pointers
    of its neighbours makes the way short, however winding the part is.
    """
    inside = mask.flatten()
    pointers = torch.arange(len(inside)).where(inside, torch.tensor(-1))
    while True:
        around = F.max_pool2d(pointers.view(1, 1, *mask.shape).double(), 3, 1, 1).long().flatten()
        updated = torch.where(inside, around, -1)
        updated[inside] = updated[updated[inside]]
        if torch.equal(updated, pointers):
            return pointers.view_as(mask)
        pointers = updated


def labels_of(logits: Tensor, padded: Sequence[int], size: Sequence[int], original: Sequence[int]) -> Tensor:
    """The class (H, W) of every pixel of a picture, from logits (K, h, w) of the same scaled to `size` and padded."""
    height, width = size
    if tuple(size) == tuple(original):
        return best_classes(logits, padded)[:height, :width]
    # Padding can be cut off at the size of the images only.
    return best_classes(resize(logits[None].float(), padded)[0, :, :height, :width], original)


TASK = SegmentTask
