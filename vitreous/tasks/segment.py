"""A class for every pixel."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitreous.data.joint import IGNORE, SegmentView
from vitreous.data.run_lengths import encode
from vitreous.data.source import ImageSet
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.heads.mm_release import Conversion
from vitreous.heads.mm_segment import load_segmenter
from vitreous.heads.segment import SEGMENTERS, Segmenter, build_segmenter, multi_scale, slide
from vitreous.layers.patch import resize
from vitreous.metrics.segmentation import SegmentationMetric
from vitreous.tasks.base import Found, Prediction, Targets, View, WithHead


class Segment(WithHead):
    main_metric = "mIoU"
    heads, usual_head = SEGMENTERS, "fpn"
    inferences = ("flip", "scales", "slide")

    def __init__(
        self,
        classes: tuple[str, ...],
        *,
        head: str | None = None,
        head_args: Mapping[str, Any] | None = None,
        short: int = 512,
        crop: tuple[int, int] = (512, 512),
    ) -> None:
        """`short` is the shorter side of whole pictures, `crop` the height and width of what is cut out to train."""
        super().__init__(classes, head, head_args)
        self.short, self.crop = short, crop

    @classmethod
    def from_settings(cls, settings: Any, images: ImageSet) -> Self:
        if len(settings.crop) not in (0, 2):
            raise InputError(f"--crop {settings.crop} given; the task segment needs a height and a width")
        short = max(settings.short) if settings.short else 512
        return cls(
            images.classes,
            head=settings.head,
            head_args=settings.head_arguments(),
            short=short,
            crop=settings.crop or (short, short),
        )

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"short": self.short, "crop": self.crop}

    def resized(self, size: int) -> Self:
        return type(self)(self.classes, **self.arguments() | {"short": size})

    def input_size(self, preprocess: Preprocess) -> tuple[int, int]:
        return self.short, 4 * self.short

    def model(self, backbone: nn.Module) -> nn.Module:
        return build_segmenter(backbone, self.head, len(self.classes), **self.head_args)

    def training_view(self, preprocess: Preprocess, settings: Any) -> View:
        ratio = settings.rescale or (0.5, 2.0)
        return SegmentView(preprocess, self.crop, ratio, settings.flip, settings.color_jitter, short=self.short)

    def evaluation_view(self, preprocess: Preprocess) -> View:
        return SegmentView(preprocess, self.crop, short=self.short, train=False)

    def predict(self, model: nn.Module, images: Tensor, targets: Targets) -> list[Prediction]:
        """`semantic` (H, W) of each picture at its own size."""
        logits = self.logits(model, images)
        found = []
        for one, size, original in zip(logits, targets["sizes"], targets["original_sizes"], strict=True):
            (height, width), whole = size.tolist(), original.tolist()
            scaled = one[None, :, :height, :width].float()
            scaled = (scaled if [height, width] == whole else resize(scaled, whole))[0]
            found.append({"semantic": scaled.argmax(0).to(torch.uint8 if len(scaled) < 256 else torch.int64).cpu()})
        return found

    def logits(self, model: nn.Module, images: Tensor) -> Tensor:
        """(B, K, H, W) of the padded images; or of several views their mean, as probabilities if they have scales."""
        look: Any = model
        if self.inference.slide:
            height, width = (max(1, 2 * side // 3) for side in self.crop)
            look = partial(slide, model, crop=self.crop, stride=(height, width))
        if self.inference.flip or self.inference.scales:
            return multi_scale(look, images, self.inference.scales or (1.0,), flip=self.inference.flip)
        return look(images)

    def truth(self, targets: Targets) -> Targets:
        return {"semantic": targets["original_semantic"]}

    def load_release(self, model: nn.Module, source: Path) -> Conversion:
        assert isinstance(model, Segmenter)
        return load_segmenter(model, source)

    def questions(self, picture: Image.Image, found: Sequence[Found]) -> list[dict[str, Any]]:
        return [{"semantic": np.full((picture.height, picture.width), IGNORE, np.uint8)}]

    def rows(self, prediction: Prediction, question: dict[str, Any]) -> list[dict[str, Any]]:
        """One for each class that is there."""
        semantic = prediction["semantic"].numpy()
        seen = np.unique(semantic).tolist()
        return [
            {"category_id": self.category_ids[label], "segmentation": encode(semantic == label), "score": 1.0}
            for label in seen
        ]

    def metric(self) -> SegmentationMetric:
        return SegmentationMetric(self.classes)


TASK = Segment
