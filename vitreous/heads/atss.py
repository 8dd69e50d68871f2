"""ATSS: positives chosen by statistics of each object instead of fixed overlaps.

Zhang, Chi, Yao, Lei, Li: "Bridging the Gap Between Anchor-based and Anchor-free Detection via Adaptive Training Sample
Selection", CVPR 2020, arXiv 1912.02424. One square anchor of eight strides at every position; an object's candidates
are the nine anchors of each level closest to its centre, and those are positive whose overlap reaches the candidates'
mean plus standard deviation and whose centre is within the object.

Shapes: A anchors of all levels, P positive ones of all images, n objects, c candidates of each.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder
from torchvision.models.detection.fcos import FCOSClassificationHead
from torchvision.ops import box_iou, generalized_box_iou_loss

from vitreous.heads.boxes import BACKGROUND_INDEX, Anchors, Selection, box_centres, level_cells
from vitreous.heads.one_stage import DenseDetector, DenseOutputs, Positives, centredness_targets
from vitreous.heads.pyramid import Norm, group_norm, norm_layer, pyramid

CANDIDATES_PER_LEVEL = 9  # of each level; the paper found anything from 7 to 17 alike


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
    """Without a `norm` the head has GroupNorm and the pyramid none, as in the paper."""

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
        base = pyramid(backbone, channels=channels, levels=levels, extra="p6p7", norm=norm)
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


HEADS = {"detect": {"atss": ATSS}}
