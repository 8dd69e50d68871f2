"""Regions of images: which boxes may contain an object (Ren et al., arXiv 1506.01497), the features under them, masks.

Shapes: B batch, A anchors of one level, R regions of all images, C channels, n boxes of one image, M side of a mask.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler, BoxCoder, Matcher
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import batched_nms, box_iou, clip_boxes_to_image, remove_small_boxes, roi_align

from vitreous.heads.boxes import BACKGROUND_INDEX, Anchors, GroundTruth, Shape, decode_all, match_objects

LEAST_PROPOSAL, PROPOSAL_OVERLAP = 1e-3, 0.7  # the smallest side in pixels; from which on the likelier of two is kept


class Sampling(NamedTuple):
    """Which anchors or regions are sampled for the loss: by IoU with an object, and how many per image."""

    object_from: float
    background_below: float
    samples: int
    positive: float  # share of the samples at most

    def __call__(self, boxes: Tensor, truth: GroundTruth, *, every_object: bool) -> tuple[Tensor, Tensor]:
        """Indices of the sampled boxes, and for each its object or BACKGROUND_INDEX.

        With `every_object`, each object gets at least its best box.
        """
        # The matcher uses our two numbers for background and ignored.
        matcher = Matcher(self.object_from, self.background_below, allow_low_quality_matches=every_object)
        matched = match_objects(boxes, truth, lambda objects: matcher(box_iou(objects, boxes)))
        kind = torch.where(matched >= 0, 1, torch.where(matched == BACKGROUND_INDEX, 0, -1))
        chosen = BalancedPositiveNegativeSampler(self.samples, self.positive)([kind])
        index = (chosen[0][0] | chosen[1][0]).nonzero()[:, 0]
        return index, matched[index]


class Proposals(nn.Module):
    """The region proposal network: objectness and a box at every anchor."""

    def __init__(
        self, channels: int, anchors: Anchors, sampling: Sampling, *, candidates: tuple[int, int], proposals: int
    ) -> None:
        """`candidates` per level in training and in evaluation, of which at most `proposals` per image are kept."""
        super().__init__()
        self.anchors, self.sampling, self.candidates, self.proposals = anchors, sampling, candidates, proposals
        self.head = RPNHead(channels, anchors.counts[0])
        self.coder = BoxCoder((1.0, 1.0, 1.0, 1.0))

    def forward(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Per level: logits (B, A) and box codes (B, A, 4)."""
        logits, codes = self.head(features)
        return (
            [level.permute(0, 2, 3, 1).flatten(1).float() for level in logits],
            [level.permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 4)).float() for level in codes],
        )

    def losses(
        self, logits: list[Tensor], codes: list[Tensor], anchors: list[Tensor], objects: list[GroundTruth]
    ) -> dict[str, Tensor]:
        scores, offsets, places = torch.cat(logits, 1), torch.cat(codes, 1), torch.cat(anchors)
        count, objectness, boxes = 0, scores.sum() * 0, offsets.sum() * 0
        for score, offset, truth in zip(scores, offsets, objects, strict=True):
            index, matched = self.sampling(places, truth, every_object=True)
            positive = matched >= 0
            target = self.coder.encode_single(truth.boxes[matched[positive]], places[index[positive]])
            objectness = objectness + F.binary_cross_entropy_with_logits(
                score[index], positive.float(), reduction="sum"
            )
            boxes = boxes + F.smooth_l1_loss(offset[index[positive]], target, beta=1 / 9, reduction="sum")
            count += len(index)
        return {"proposal_objects": objectness / max(count, 1), "proposal_boxes": boxes / max(count, 1)}

    @torch.no_grad()
    def regions(
        self, logits: list[Tensor], codes: list[Tensor], anchors: list[Tensor], shapes: list[Shape]
    ) -> list[Tensor]:
        """Proposed boxes of each image."""

        def decoded(level: int, index: Tensor) -> Tensor:
            code = codes[level].gather(1, index[:, :, None].expand(-1, -1, 4))
            places = anchors[level][index]
            return self.coder.decode_single(code.flatten(0, 1), places.flatten(0, 1)).view_as(code)

        return likeliest_boxes(logits, decoded, shapes, self.candidates[0 if self.training else 1], self.proposals)

    def everywhere(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Logits (B, A) and boxes (B, A, 4) of the anchors of all levels, without a choice."""
        logits, codes = self(features)
        boxes = decode_all(self.coder.decode_single, torch.cat(codes, 1), self.anchors.levels(features))
        return torch.cat(logits, 1), boxes


def likeliest_boxes(
    logits: Sequence[Tensor],
    boxes_at: Callable[[int, Tensor], Tensor],
    shapes: list[Shape],
    candidates: int,
    proposals: int,
) -> list[Tensor]:
    """The likeliest boxes of each image, at most `proposals` of at most `candidates` on each level.

    `boxes_at` gives the boxes (B, k, 4) of a level at places (B, k).
    """
    scores, boxes, levels = [], [], []
    for number, logit in enumerate(logits):
        score, index = logit.topk(min(candidates, logit.shape[1]), dim=1)  # (B, k)
        boxes.append(boxes_at(number, index))
        scores.append(score)
        levels.append(torch.full_like(index, number))
    together = (torch.cat(part, 1) for part in (boxes, scores, levels))
    found = []
    for box, score, level, shape in zip(*together, shapes, strict=True):
        box = clip_boxes_to_image(box, shape)
        kept = remove_small_boxes(box, LEAST_PROPOSAL)
        kept = kept[batched_nms(box[kept], score[kept], level[kept], PROPOSAL_OVERLAP)]
        found.append(box[kept[:proposals]])
    return found


class RegionAlign(nn.Module):
    """Features under each box, from the level that suits its size: (R, C, size, size)."""

    def __init__(self, strides: Sequence[int], size: int, samples: int) -> None:
        """`samples` per cell and side; 0 for as many as the cell has pixels of the level."""
        super().__init__()
        self.strides, self.size, self.samples = tuple(strides), size, samples

    def forward(self, features: Sequence[Tensor], boxes: list[Tensor]) -> Tensor:
        together = torch.cat(boxes)
        owner = torch.cat([torch.full_like(box[:, :1], image) for image, box in enumerate(boxes)])
        regions = torch.cat([owner, together], 1)  # (R, 5)
        level = region_levels(together, self.strides)
        if torch.compiler.is_exporting():
            return self._of_a_graph(features, regions, level)
        parts, order = [], []
        for i in range(len(self.strides)):
            index = (level == i).nonzero()[:, 0]
            parts.append(self.on_level(i, features[i], regions[index]))
            order.append(index)
        return torch.cat(parts)[torch.cat(order).argsort()]

    def _of_a_graph(self, features: Sequence[Tensor], regions: Tensor, level: Tensor) -> Tensor:
        """All boxes on all levels: how many belong to each depends on values, which a graph cannot follow."""
        found = self.on_level(0, features[0], regions)
        for i in range(1, len(self.strides)):
            found = torch.where((level == i)[:, None, None, None], self.on_level(i, features[i], regions), found)
        return found

    def on_level(self, level: int, maps: Tensor, regions: Tensor) -> Tensor:
        """Under regions (R, 5), image and box, that all belong to one level, whose maps (B, C, h, w) are given."""
        # In single precision: a half has too few digits for a place in a large picture, bfloat16 by several pixels.
        scale = 1 / self.strides[level]
        return roi_align(maps.float(), regions.float(), self.size, scale, self.samples, aligned=True).to(maps.dtype)

    def sorted_by_level(self, features: Sequence[Tensor], boxes: Sequence[Tensor]) -> Tensor:
        """Of one image, whose boxes (n, 4) come for each level."""
        regions = [torch.cat([torch.zeros_like(box[:, :1]), box], 1) for box in boxes]
        levels = range(len(self.strides))
        return torch.cat([self.on_level(i, features[i], regions[i]) for i in levels])


def region_levels(boxes: Tensor, strides: Sequence[int]) -> Tensor:
    """Which of the levels suits each box (R, 4): (R,).

    Lin et al., equation 1: boxes of 224 pixels belong to stride 16, those of half that to stride 8.
    """
    side = (boxes[:, 2:] - boxes[:, :2]).clamp(0).prod(1).sqrt()
    ideal = 4 + torch.log2(side / 224 + 1e-6).floor()
    steps = torch.tensor([round(math.log2(stride)) for stride in strides], device=boxes.device)
    return (ideal[:, None] - steps).abs().argmin(1)


def pool_some(
    align: RegionAlign, features: list[Tensor], boxes: list[Tensor], shapes: list[Shape]
) -> tuple[Tensor, float]:
    """Features of the regions and the weight 1; if there is none, of a whole image and 0.

    Every parameter then still gets a gradient, which several processes need, and norms meet no empty batch.
    """
    if any(map(len, boxes)):
        return align(features, boxes), 1.0
    whole = boxes[0].new_tensor([[0.0, 0.0, shapes[0][1], shapes[0][0]]])
    return align(features, [whole, *boxes[1:]]), 0.0


def mask_targets(boxes: Tensor, matched: Tensor, truth: GroundTruth, side: int) -> Tensor:
    """Masks of the matched objects within the boxes (n, M, M): 1 where the object is, 0 elsewhere."""
    assert truth.masks is not None
    if not len(boxes):
        return boxes.new_zeros(0, side, side)
    regions = torch.cat([matched[:, None].to(boxes), boxes], 1)
    parts = roi_align(truth.masks[:, None].to(boxes), regions, side, 1.0, 0, aligned=True)[:, 0]
    return (parts >= 0.5).float()


def paste_masks(masks: Tensor, boxes: Tensor, shape: Shape) -> Tensor:
    """Probabilities (n, M, M) within boxes (n, 4) as probabilities (n, H, W) of the image, 0 outside."""
    height, width = shape
    x0, y0, x1, y1 = boxes[:, :, None].unbind(1)  # (n, 1) each
    y = (torch.arange(height, device=boxes.device) + 0.5 - y0) / (y1 - y0) * 2 - 1  # (n, H) from -1 to 1 in the box
    x = (torch.arange(width, device=boxes.device) + 0.5 - x0) / (x1 - x0) * 2 - 1  # (n, W)
    grid = torch.stack([x[:, None].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)], 3)  # (n, H, W, 2)
    return F.grid_sample(masks[:, None], grid.to(masks.dtype), align_corners=False)[:, 0]
