"""SSD and SSDLite: predictions from the backbone's coarse maps and a few smaller ones after them.

Liu et al., arXiv 1512.02325; with depth-wise layers, Sandler et al., arXiv 1801.04381. The layers are torchvision's.
Default boxes have the sizes the papers give them in an image of `size` pixels, whatever the image at hand.

Shapes: B batch, A default boxes of all levels, K classes.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder, SSDMatcher
from torchvision.models.detection.ssd import SSDHead
from torchvision.models.detection.ssdlite import SSDLiteHead, _extra_block, _normal_init
from torchvision.ops import Conv2dNormActivation, box_iou

from vitreous.errors import InputError
from vitreous.heads.boxes import (
    BACKGROUND_INDEX,
    Anchors,
    Candidates,
    Decode,
    Detector,
    GroundTruth,
    Selection,
    Shape,
    cell_boxes,
    collect_positives,
    decode_all,
    match_objects,
    size_rows,
)
from vitreous.heads.pyramid import Levels, norm_layer
from vitreous.registry import create_model

NEGATIVES_PER_POSITIVE = 3  # the hardest default boxes of the background
slow_batch_norm = partial(nn.BatchNorm2d, eps=0.001, momentum=0.03)  # as SSDLite was trained with


class ShrinkingMaps(Levels):
    """Maps of a backbone and, after the coarsest, blocks that halve the sides."""

    def __init__(
        self,
        backbone: str | nn.Module,
        levels: Sequence[int],
        widths: Sequence[int],
        block: Callable[[int, int], nn.Module],
    ) -> None:
        model = create_model(backbone, features_only=True) if isinstance(backbone, str) else backbone
        super().__init__(model, levels)
        self.channels = (*self.channels, *widths)
        start = len(self.strides) - 1
        self.extra = nn.ModuleList(block(*pair) for pair in pairwise(self.channels[start:]))
        self.strides = (*self.strides, *(self.strides[-1] * 2 ** (i + 1) for i in range(len(widths))))

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        maps = self.maps(images)
        for block in self.extra:
            maps.append(block(maps[-1]))
        return OrderedDict((str(level), features) for level, features in enumerate(maps))


class SSD(Detector):
    """Without a `norm` SSD has none and SSDLite BatchNorm, as in the papers."""

    backbone: ShrinkingMaps

    def __init__(
        self,
        backbone: str | nn.Module,
        classes: int,
        *,
        lite: bool,
        size: int = 320,
        channels: int = 512,
        norm: str | None = None,
        levels: Sequence[int] | None = None,
        anchor_sizes: Sequence[float | Sequence[float]] | None = None,
        anchor_ratios: Sequence[float] = (2.0, 3.0),
        score_threshold: float = 0.01,
        nms_threshold: float = 0.5,
        detections: int = 200,
    ) -> None:
        layer = norm_layer(norm) or (slow_batch_norm if lite else None)
        levels = levels or ((16, 32) if lite else (8, 16, 32))
        widths = [max(channels // part, 8) for part in (1, 2, 2, 4)][: 6 - len(levels)]
        block = partial(_extra_block, norm_layer=layer) if lite else partial(halving_block, layer)
        super().__init__(ShrinkingMaps(backbone, levels, widths, block))
        if lite:
            _normal_init(self.backbone.extra)
        self.anchors = default_boxes(self.backbone.strides, size, anchor_sizes, anchor_ratios)
        self.selection = Selection(score_threshold, nms_threshold, 1000, detections)
        head = partial(SSDLiteHead, norm_layer=layer) if lite else SSDHead
        self.head = head(list(self.backbone.channels), self.anchors.counts, classes + 1)
        self.coder = BoxCoder((10.0, 10.0, 5.0, 5.0))
        self.matcher = SSDMatcher(0.5)  # every object has at least one default box

    def answers(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Logits (B, A, 1 + K), the background first, and box codes (B, A, 4)."""
        outputs = self.head(features)
        return outputs["cls_logits"].float(), outputs["bbox_regression"].float()

    def forward(self, images: Tensor, targets: dict[str, Any] | None = None, *, sizes: Tensor | None = None) -> Any:
        normed = any(isinstance(module, nn.BatchNorm2d) for module in self.backbone.extra.modules())
        if self.training and len(images) == 1 and normed:
            raise InputError(
                "one image and BatchNorm cannot train SSD: its last maps have a single position, which has no "
                "variance. Use a larger batch, or norm='gn'"
            )
        return super().forward(images, targets, sizes=sizes)

    def losses(self, features: list[Tensor], shapes: list[Shape], objects: list[GroundTruth]) -> dict[str, Tensor]:
        logits, codes = self.answers(features)
        anchors = torch.cat(self.anchors.levels(features))

        def match(boxes: Tensor) -> Tensor:
            return self.matcher(box_iou(boxes, anchors))

        matched = torch.stack([match_objects(anchors, truth, match) for truth in objects])  # (B, A)
        found = collect_positives(matched, objects)
        where = (found.images, found.places)
        labels = torch.zeros_like(matched)
        labels[where] = found.labels + 1
        entropy = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(matched)
        hardness = entropy.detach().masked_fill(matched != BACKGROUND_INDEX, -math.inf)
        rank = hardness.argsort(1, descending=True).argsort(1)  # (B, A), 0 the hardest
        positive = matched >= 0
        negative = (rank < NEGATIVES_PER_POSITIVE * positive.sum(1, keepdim=True)) & (matched == BACKGROUND_INDEX)
        count = max(len(found.places), 1)
        target = self.coder.encode_single(found.boxes, anchors[found.places])
        box = F.smooth_l1_loss(codes[where], target, reduction="sum")
        return {"class": entropy[positive | negative].sum() / count, "box": box / count}

    def considered(self, features: list[Tensor], shapes: list[Shape]) -> list[Candidates]:
        logits, codes = self.answers(features)
        anchors = torch.cat(self.anchors.levels(features))

        def boxes(codes: Tensor) -> Decode:
            return lambda rows, labels: self.coder.decode_single(codes[rows], anchors[rows])

        scores = self.scores(logits)
        return [Candidates(score, boxes(code), (len(anchors),)) for score, code in zip(scores, codes, strict=True)]

    @staticmethod
    def scores(logits: Tensor) -> Tensor:
        return logits.softmax(2)[:, :, 1:]

    def everywhere(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = list(self.backbone(images).values())
        logits, codes = self.answers(features)
        return self.scores(logits), decode_all(self.coder.decode_single, codes, self.anchors.levels(features))

    def raw(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.answers(list(self.backbone(images).values()))


def default_boxes(
    strides: Sequence[int], size: int, given: Sequence[float | Sequence[float]] | None, ratios: Sequence[float]
) -> Anchors:
    """At each position of a level two squares, one between this level's size and the next, and one box for each ratio
    and its inverse. Sizes are given, or grow evenly from 0.2 to 0.95 of the image.
    """
    count = len(strides)
    if given is None:
        given = [size * (0.2 + 0.75 * level / (count - 1)) for level in range(count)]
    rows = size_rows(given, strides)
    if any(len(row) > 1 for row in rows):
        raise InputError(f"anchor_sizes={given!r} given; SSD makes its boxes of one size for each level")
    sides = [*(row[0] for row in rows), float(size)]
    shapes = [shape for ratio in ratios for shape in (ratio, 1 / ratio)]
    cells = [
        torch.cat([cell_boxes([this, math.sqrt(this * after)], [1.0]), *(cell_boxes([this], [r]) for r in shapes)])
        for this, after in pairwise(sides)
    ]
    return Anchors(strides, cells, offset=0.5, even=True)


def halving_block(layer: Callable[[int], nn.Module] | None, in_channels: int, channels: int) -> nn.Sequential:
    return nn.Sequential(
        Conv2dNormActivation(in_channels, channels // 2, 1, norm_layer=layer),
        Conv2dNormActivation(channels // 2, channels, 3, stride=2, norm_layer=layer),
    )


HEADS = {"detect": {"ssd": partial(SSD, lite=False), "ssdlite": partial(SSD, lite=True)}}
