"""Boxes around objects, with their classes and, from some heads, their masks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from PIL import Image
from torch import Tensor, nn

from vitreous.data.annotations import objects_of
from vitreous.data.detector_boxes import Found
from vitreous.data.joint import DetectView
from vitreous.data.run_lengths import encode
from vitreous.data.source import ImageSet
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.heads.boxes import Detector
from vitreous.heads.detect import DETECTORS, build_detector, paste_masks
from vitreous.heads.openmmlab.conversion import Conversion
from vitreous.heads.openmmlab.detect import load_detector
from vitreous.metrics.coco import CocoMetric, Kind
from vitreous.metrics.together import Together
from vitreous.tasks.base import Metric, Prediction, Targets, View, WithHead

MASKED = ("maskrcnn",)  # heads that give masks


class Detect(WithHead):
    name, purpose, targets = "detect", "detect", "boxes"
    settings = WithHead.settings | {"short", "longest", "crop", "rescale"}
    main_metric = "AP"
    shown = ("AP", "AP50", "mask_AP", "mask_AP50")
    heads, usual_head = DETECTORS, "fcos"

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
        """`short` and `longest` limit the sides of pictures; `category_ids` are the classes' numbers in the data."""
        super().__init__(classes, head, head_args)
        if category_ids and len(category_ids) != len(classes):
            raise InputError(f"{len(category_ids)} category ids given for {len(classes)} classes; they must be as many")
        self.short, self.longest = short, longest
        self.category_ids = category_ids or self.category_ids

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
        scale = {"short": self.short, "longest": self.longest}
        return super().arguments() | scale | {"category_ids": self.category_ids}

    def resized(self, size: int) -> Self:
        longest = round(self.longest * size / self.short)
        return type(self)(self.classes, **self.arguments() | {"short": size, "longest": longest})

    def input_size(self, preprocess: Preprocess) -> tuple[int, int]:
        return self.short, self.longest

    def model(self, backbone: nn.Module) -> nn.Module:
        return build_detector(backbone, self.head, len(self.classes), **self.head_args)

    @property
    def masks(self) -> bool:
        return self.head in MASKED

    def training_view(self, preprocess: Preprocess, settings: Any) -> View:
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

    def evaluation_view(self, preprocess: Preprocess) -> View:
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

    def questions(self, picture: Image.Image, found: Sequence[Found]) -> list[dict[str, Any]]:
        return [{"objects": objects_of([], []), "image_id": 0}]

    def rows(self, prediction: Prediction, question: dict[str, Any]) -> list[dict[str, Any]]:
        boxes = prediction["boxes"].double()
        sides = torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1).tolist()
        answers = zip(sides, prediction["labels"].tolist(), prediction["scores"].tolist(), strict=True)
        rows = [
            {"category_id": self.category_ids[label], "bbox": side, "score": score} for side, label, score in answers
        ]
        for row, mask in zip(rows, prediction.get("masks", ()), strict=False):
            row["segmentation"] = encode(mask.numpy())
        return rows

    def metric(self) -> Metric:
        kinds: dict[str, Kind] = {"": "bbox", "mask_": "segm"} if self.masks else {"": "bbox"}
        return Together({prefix: CocoMetric(kind, self.classes, self.category_ids) for prefix, kind in kinds.items()})


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


TASK = Detect
