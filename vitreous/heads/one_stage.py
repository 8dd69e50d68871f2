"""RetinaNet, FCOS and ATSS: every position of every level predicts a class and a box.

Lin et al., arXiv 1708.02002; Tian et al., arXiv 1904.01355; Zhang, Chi, Yao, Lei, Li: "Bridging the Gap Between
Anchor-based and Anchor-free Detection via Adaptive Training Sample Selection", arXiv 1912.02424. The layers are mostly
torchvision's. What surrounds them is written here: images come padded, crowds are ignored, no batch gives NaN.

Shapes: B batch, A anchors of all levels, P positive anchors of all images, K classes, n objects, c candidates of each.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder, BoxLinearCoder, Matcher
from torchvision.models.detection.fcos import FCOSClassificationHead, FCOSRegressionHead
from torchvision.models.detection.retinanet import RetinaNetClassificationHead, RetinaNetRegressionHead
from torchvision.ops import box_iou, generalized_box_iou_loss, sigmoid_focal_loss

from vitreous.errors import InputError
from vitreous.heads.boxes import (
    BACKGROUND_INDEX,
    IGNORED_INDEX,
    Anchors,
    Candidates,
    Decode,
    Detector,
    GroundTruth,
    Selection,
    Shape,
    box_centres,
    cell_boxes,
    collect_positives,
    decode_all,
    level_cells,
    match_objects,
)
from vitreous.heads.pyramid import Norm, Pyramid, group_norm, norm_layer

CANDIDATES_PER_LEVEL = 9  # of ATSS; its paper found anything from 7 to 17 alike


class DenseOutputs(NamedTuple):
    """The network's output at every anchor."""

    logits: Tensor  # (B, A, K)
    codes: Tensor  # (B, A, 4)
    centredness: Tensor | None  # (B, A): how central within its object, as a logit


class Positives(NamedTuple):
    """The outputs at positive anchors of all images, with their targets."""

    codes: Tensor  # (P, 4)
    centredness: Tensor | None  # (P,)
    anchors: Tensor  # (P, 4)
    boxes: Tensor  # (P, 4) of the objects


class DenseDetector(Detector):
    """Base of detectors that predict at every anchor, with an independent score per class."""

    def __init__(self, backbone: Pyramid, anchors: Anchors, selection: Selection) -> None:
        super().__init__(backbone)
        self.anchors, self.selection = anchors, selection

    @abstractmethod
    def answers(self, features: list[Tensor]) -> DenseOutputs:
        """The outputs at every anchor of all levels."""

    @abstractmethod
    def match(self, anchors: list[Tensor], boxes: Tensor) -> Tensor:
        """For every anchor the index of an object in `boxes` (n, 4), n > 0, BACKGROUND_INDEX or IGNORED_INDEX."""

    @abstractmethod
    def box_losses(self, positives: Positives, count: int) -> dict[str, Tensor]:
        """Losses of the positive anchors by name; `count` is their number, at least 1."""

    @abstractmethod
    def decode(self, codes: Tensor, anchors: Tensor) -> Tensor:
        """Boxes (…, 4) from codes at anchors."""

    def losses(self, features: list[Tensor], shapes: list[Shape], objects: list[GroundTruth]) -> dict[str, Tensor]:
        answers, anchors = self.answers(features), self.anchors.levels(features)
        together, match = torch.cat(anchors), partial(self.match, anchors)
        matched = torch.stack([match_objects(together, truth, match) for truth in objects])  # (B, A)
        found = collect_positives(matched, objects)
        target = torch.zeros_like(answers.logits)
        target[found.images, found.places, found.labels] = 1.0
        counted = matched != IGNORED_INDEX
        focal = sigmoid_focal_loss(answers.logits[counted], target[counted], alpha=0.25, gamma=2.0, reduction="sum")
        count = max(len(found.places), 1)
        where = (found.images, found.places)
        central = None if answers.centredness is None else answers.centredness[where]
        positives = Positives(answers.codes[where], central, together[found.places], found.boxes)
        return {"class": focal / count, **self.box_losses(positives, count)}

    def considered(self, features: list[Tensor], shapes: list[Shape]) -> list[Candidates]:
        answers, anchors = self.answers(features), self.anchors.levels(features)
        scores = self.scores(answers)
        levels, together = tuple(len(level) for level in anchors), torch.cat(anchors)

        def boxes(codes: Tensor) -> Decode:
            return lambda rows, labels: self.decode(codes[rows], together[rows])

        return [Candidates(score, boxes(codes), levels) for score, codes in zip(scores, answers.codes, strict=True)]

    @staticmethod
    def scores(answers: DenseOutputs) -> Tensor:
        """(B, A, K)."""
        scores = answers.logits.sigmoid()
        if answers.centredness is None:
            return scores
        return (scores * answers.centredness.sigmoid()[:, :, None]).sqrt()

    def everywhere(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = list(self.backbone(images).values())
        answers = self.answers(features)
        return self.scores(answers), decode_all(self.decode, answers.codes, self.anchors.levels(features))

    def raw(self, images: Tensor) -> DenseOutputs:
        return self.answers(list(self.backbone(images).values()))


class RetinaNet(DenseDetector):
    def __init__(
        self,
        backbone: str | nn.Module,
        classes: int,
        *,
        channels: int = 256,
        norm: Norm | None = None,
        levels: Sequence[int] | None = None,
        convs: int = 4,
        anchor_sizes: Sequence[float | Sequence[float]] | None = None,
        anchor_ratios: Sequence[float] = (0.5, 1.0, 2.0),
        score_threshold: float = 0.05,
        nms_threshold: float = 0.5,
        detections: int = 100,
    ) -> None:
        if not 0 <= convs <= 4:
            raise InputError(f"convs={convs} given; RetinaNet has up to 4 before a prediction")
        base = Pyramid(backbone, channels=channels, levels=levels, extra="p6p7_c5", norm=norm)
        octaves = [4 * 2 ** (third / 3) for third in range(3)]
        anchors = Anchors(base.strides, level_cells(anchor_sizes, anchor_ratios, base.strides, octaves))
        super().__init__(base, anchors, Selection(score_threshold, nms_threshold, 1000, detections))
        layer, count = norm_layer(norm), anchors.counts[0]
        self.classifier = RetinaNetClassificationHead(channels, count, classes, norm_layer=layer)
        self.regressor = RetinaNetRegressionHead(channels, count, norm_layer=layer)
        for head in (self.classifier, self.regressor):
            head.conv = head.conv[:convs]
        self.coder = BoxCoder((1.0, 1.0, 1.0, 1.0))
        self.matcher = Matcher(0.5, 0.4, allow_low_quality_matches=True)  # uses our two numbers for the rest

    def answers(self, features: list[Tensor]) -> DenseOutputs:
        return DenseOutputs(self.classifier(features).float(), self.regressor(features).float(), None)

    def match(self, anchors: list[Tensor], boxes: Tensor) -> Tensor:
        return self.matcher(box_iou(boxes, torch.cat(anchors)))

    def box_losses(self, positives: Positives, count: int) -> dict[str, Tensor]:
        target = self.coder.encode_single(positives.boxes, positives.anchors)
        return {"box": F.l1_loss(positives.codes, target, reduction="sum") / count}

    def decode(self, codes: Tensor, anchors: Tensor) -> Tensor:
        return self.coder.decode_single(codes, anchors)


class FCOS(DenseDetector):
    """Anchors are the cells themselves; a level is responsible for objects of 4 to 8 times its stride.

    Without a `norm` the head has GroupNorm and the pyramid none, as in the paper.
    """

    radius = 1.5  # around an object's centre, in strides, positions are positive

    def __init__(
        self,
        backbone: str | nn.Module,
        classes: int,
        *,
        channels: int = 256,
        norm: Norm | None = None,
        levels: Sequence[int] | None = None,
        convs: int = 4,
        score_threshold: float = 0.05,
        nms_threshold: float = 0.6,
        detections: int = 100,
    ) -> None:
        base = Pyramid(backbone, channels=channels, levels=levels, extra="p6p7", norm=norm)
        anchors = Anchors(base.strides, [cell_boxes([stride], [1.0]) for stride in base.strides], offset=0.5)
        super().__init__(base, anchors, Selection(score_threshold, nms_threshold, 1000, detections))
        layer = norm_layer(norm) or group_norm
        self.classifier = FCOSClassificationHead(channels, 1, classes, convs, norm_layer=layer)
        self.regressor = FCOSRegressionHead(channels, 1, convs, norm_layer=layer)
        self.coder = BoxLinearCoder(normalize_by_size=True)

    def answers(self, features: list[Tensor]) -> DenseOutputs:
        codes, centredness = self.regressor(features)
        return DenseOutputs(self.classifier(features).float(), codes.float(), centredness[:, :, 0].float())

    def match(self, anchors: list[Tensor], boxes: Tensor) -> Tensor:
        cells = torch.cat(anchors)
        stride = (cells[:, 2] - cells[:, 0])[:, None]  # (A, 1)
        point = box_centres(cells)[:, None]  # (A, 1, 2)
        sides = torch.cat([point - boxes[:, :2], boxes[:, 2:] - point], 2)  # (A, n, 4) distances
        central = (point - box_centres(boxes)).abs().amax(2) < self.radius * stride
        low, high = 4 * stride, 8 * stride
        low[: len(anchors[0])], high[-len(anchors[-1]) :] = 0, math.inf
        reach = sides.amax(2)
        fits = central & (sides.amin(2) > 0) & (reach > low) & (reach <= high)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        smallest, number = torch.where(fits, area, math.inf).min(1)  # where objects overlap, the smallest one
        return torch.where(smallest.isfinite(), number, BACKGROUND_INDEX)

    def box_losses(self, positives: Positives, count: int) -> dict[str, Tensor]:
        assert positives.centredness is not None
        boxes = self.decode(positives.codes, positives.anchors)
        central = centredness_targets(box_centres(positives.anchors), positives.boxes)
        overlap = generalized_box_iou_loss(boxes, positives.boxes, reduction="sum")
        entropy = F.binary_cross_entropy_with_logits(positives.centredness, central, reduction="sum")
        return {"box": overlap / count, "centredness": entropy / count}

    def decode(self, codes: Tensor, anchors: Tensor) -> Tensor:
        return self.coder.decode(codes, anchors)


def centredness_targets(points: Tensor, boxes: Tensor) -> Tensor:
    """(P,): 1 at the centre of a box, falling to 0 at its sides."""
    left, top = (points - boxes[:, :2]).clamp(0).unbind(1)
    right, bottom = (boxes[:, 2:] - points).clamp(0).unbind(1)
    across = torch.minimum(left, right) / torch.maximum(left, right)
    return (across * torch.minimum(top, bottom) / torch.maximum(top, bottom)).sqrt()


class ATSSRegressor(nn.Module):
    """Box codes and centredness. Levels share all layers and have a scale each."""

    def __init__(self, width: int, levels: int, convs: int, layer: Callable[[int], nn.Module]) -> None:
        super().__init__()
        tower = [(nn.Conv2d(width, width, 3, padding=1), layer(width), nn.ReLU()) for _ in range(convs)]
        self.tower = nn.Sequential(*(part for parts in tower for part in parts))
        self.codes = nn.Conv2d(width, 4, 3, padding=1)
        self.centredness = nn.Conv2d(width, 1, 3, padding=1)
        self.scales = nn.Parameter(torch.ones(levels))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Of all levels: codes (B, A, 4) and centredness (B, A)."""
        codes, central = [], []
        for level, scale in zip(features, self.scales, strict=True):
            x = self.tower(level)
            codes.append((self.codes(x) * scale).permute(0, 2, 3, 1).flatten(1, 2))
            central.append(self.centredness(x).flatten(1))
        return torch.cat(codes, 1).float(), torch.cat(central, 1).float()


class ATSS(DenseDetector):
    """Positives are chosen by statistics of each object instead of fixed overlaps.

    One square anchor of eight strides at every position; an object's candidates are the nine anchors of each level
    closest to its centre, and those are positive whose overlap reaches the candidates' mean plus standard deviation and
    whose centre is within the object. Without a `norm` the head has GroupNorm and the pyramid none, as in the paper.
    """

    def __init__(
        self,
        backbone: str | nn.Module,
        classes: int,
        *,
        channels: int = 256,
        norm: Norm | None = None,
        levels: Sequence[int] | None = None,
        convs: int = 4,
        anchor_sizes: Sequence[float | Sequence[float]] | None = None,
        score_threshold: float = 0.05,
        nms_threshold: float = 0.6,
        detections: int = 100,
    ) -> None:
        base = Pyramid(backbone, channels=channels, levels=levels, extra="p6p7", norm=norm)
        anchors = Anchors(base.strides, level_cells(anchor_sizes, (1.0,), base.strides, (8,)))
        super().__init__(base, anchors, Selection(score_threshold, nms_threshold, 1000, detections))
        layer = norm_layer(norm) or group_norm
        self.classifier = FCOSClassificationHead(channels, 1, classes, convs, norm_layer=layer)
        self.regressor = ATSSRegressor(channels, len(base.strides), convs, layer)
        self.coder = BoxCoder((10.0, 10.0, 5.0, 5.0))

    def answers(self, features: list[Tensor]) -> DenseOutputs:
        return DenseOutputs(self.classifier(features).float(), *self.regressor(features))

    def match(self, anchors: list[Tensor], boxes: Tensor) -> Tensor:
        return adaptive_match(anchors, boxes)

    def box_losses(self, positives: Positives, count: int) -> dict[str, Tensor]:
        assert positives.centredness is not None
        central = centredness_targets(box_centres(positives.anchors), positives.boxes)
        overlap = generalized_box_iou_loss(self.decode(positives.codes, positives.anchors), positives.boxes)
        box = 2.0 * (overlap * central).sum() / central.sum().clamp(min=1e-6)
        entropy = F.binary_cross_entropy_with_logits(positives.centredness, central, reduction="sum")
        return {"box": box, "centredness": entropy / count}

    def decode(self, codes: Tensor, anchors: Tensor) -> Tensor:
        return self.coder.decode_single(codes, anchors)


def adaptive_match(anchors: list[Tensor], boxes: Tensor) -> Tensor:
    """For every anchor of all levels (A,) the index of its object in `boxes` (n, 4), or BACKGROUND_INDEX."""
    together = torch.cat(anchors)
    points, overlaps = box_centres(together), box_iou(together, boxes)  # (A, 2), (A, n)
    # By differences: a matrix product would lose whole pixels to rounding at large coordinates.
    distance = torch.cdist(points, box_centres(boxes), compute_mode="donot_use_mm_for_euclid_dist")  # (A, n)
    chosen, start = [], 0
    for level in anchors:
        closest = distance[start : start + len(level)].topk(min(CANDIDATES_PER_LEVEL, len(level)), dim=0, largest=False)
        chosen.append(closest.indices + start)
        start += len(level)
    candidates = torch.cat(chosen)  # (c, n)
    values = overlaps.gather(0, candidates)
    # A single candidate has no deviation.
    threshold = values.mean(0) + (values.std(0) if len(values) > 1 else 0.0)
    place = points[candidates]  # (c, n, 2)
    inside = torch.cat([place - boxes[:, :2], boxes[:, 2:] - place], 2).amin(2) > 0.01
    positive = torch.zeros_like(overlaps, dtype=torch.bool).scatter(0, candidates, (values >= threshold) & inside)
    best, number = torch.where(positive, overlaps, -1.0).max(1)  # of several objects, the one with the largest IoU
    return torch.where(best >= 0, number, BACKGROUND_INDEX)


HEADS = {"detect": {"retinanet": RetinaNet, "fcos": FCOS, "atss": ATSS}}
