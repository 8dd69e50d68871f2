"""A class for every pixel."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from PIL import Image
from torch import Tensor, nn

from vitreous.data.detector_boxes import Found
from vitreous.data.joint import IGNORE, SegmentView
from vitreous.data.run_lengths import encode
from vitreous.data.source import ImageSet
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.heads.openmmlab.conversion import Conversion
from vitreous.heads.openmmlab.segment import load_segmenter
from vitreous.heads.segment import SEGMENTERS, Segmenter, best_classes, build_segmenter, multi_scale, sliding_window
from vitreous.layers.patch import resize
from vitreous.metrics.segmentation import SegmentationMetric
from vitreous.tasks.base import Inference, Prediction, Targets, View, WithHead


class Segment(WithHead):
    name, purpose, targets = "segment", "segment", "semantic"
    settings = WithHead.settings | {"short", "crop", "rescale", "ignore", "reduce_zero_label"}
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
        return super().arguments() | {"short": self.short, "crop": self.crop} | values

    def reading(self) -> dict[str, Any]:
        return {"ignore": self.ignore or None, "reduce_zero_label": self.reduce_zero_label}

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
        padded, found = images.shape[2:], []
        for one, size, original in zip(
            self.logits(model, images), targets["sizes"].tolist(), targets["original_sizes"].tolist(), strict=True
        ):
            found.append({"semantic": labels_of(one, padded, size, original).cpu()})
        return found

    def logits(self, model: nn.Module, images: Tensor) -> Tensor:
        """(B, K, h, w) of the padded images, at the size at which the model answers.

        Of several views, their mean at the size of the images; as probabilities if they have scales.
        """
        if self.inference == Inference():
            assert isinstance(model, Segmenter)
            return model.output(images, auxiliary=False).logits
        look: Any = model
        if self.inference.slide:
            height, width = (max(1, 2 * side // 3) for side in self.crop)
            look = partial(sliding_window, model, crop=self.crop, stride=(height, width))
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


def labels_of(logits: Tensor, padded: Sequence[int], size: Sequence[int], original: Sequence[int]) -> Tensor:
    """The class (H, W) of every pixel of a picture, from logits (K, h, w) of the same scaled to `size` and padded."""
    height, width = size
    if tuple(size) == tuple(original):
        return best_classes(logits, padded)[:height, :width]
    # Padding can be cut off at the size of the images only.
    return best_classes(resize(logits[None].float(), padded)[0, :, :height, :width], original)


TASK = Segment
