"""The first stage of R-CNN detectors: which boxes may contain an object. Ren et al., arXiv 1506.01497.

Shapes: B batch, A anchors of one level.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler, BoxCoder, Matcher
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import batched_nms, box_iou, clip_boxes_to_image, remove_small_boxes

from vitreous.heads.boxes import BACKGROUND_INDEX, IGNORED_INDEX, Anchors, GroundTruth, Shape, ignored_boxes


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
        matched = torch.full((len(boxes),), BACKGROUND_INDEX, device=boxes.device)
        if len(truth.boxes):
            matcher = Matcher(self.object_from, self.background_below, allow_low_quality_matches=every_object)
            matched = matcher(box_iou(truth.boxes, boxes))  # uses our two numbers for background and ignored
        matched = torch.where((matched == BACKGROUND_INDEX) & ignored_boxes(boxes, truth), IGNORED_INDEX, matched)
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
        candidates = self.candidates[0 if self.training else 1]
        scores, boxes, levels = [], [], []
        for number, (logit, code, places) in enumerate(zip(logits, codes, anchors, strict=True)):
            score, index = logit.topk(min(candidates, logit.shape[1]), dim=1)  # (B, k)
            code = code.gather(1, index[:, :, None].expand(-1, -1, 4))
            boxes.append(self.coder.decode_single(code.flatten(0, 1), places[index].flatten(0, 1)).view_as(code))
            scores.append(score)
            levels.append(torch.full_like(index, number))
        together = (torch.cat(part, 1) for part in (boxes, scores, levels))
        found = []
        for box, score, level, shape in zip(*together, shapes, strict=True):
            box = clip_boxes_to_image(box, shape)
            kept = remove_small_boxes(box, 1e-3)
            kept = kept[batched_nms(box[kept], score[kept], level[kept], 0.7)]
            found.append(box[kept[: self.proposals]])
        return found
