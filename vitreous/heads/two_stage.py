"""Faster R-CNN and Mask R-CNN: a network proposes regions, a second one classifies, refines and segments them.

Ren et al., arXiv 1506.01497; He et al., arXiv 1703.06870; on a pyramid, Lin et al., arXiv 1612.03144. The layers are
torchvision's. What surrounds them is written here: images come padded, crowds are ignored, no batch gives NaN, regions
are aligned to half pixels, and boxes are not regressed for the background.

Shapes: R regions of all images, K classes, C channels, M side of a mask.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

from vitreous.errors import InputError
from vitreous.heads.boxes import Anchors, Candidates, Decode, Detector, GroundTruth, Selection, Shape, level_cells
from vitreous.heads.pyramid import Norm, Pyramid, norm_layer
from vitreous.heads.regions import Proposals, RegionAlign, Sampling, mask_targets, pool_some


class BoxPredictor(nn.Module):
    """Class logits, the background first, and box codes for each class without it."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.cls_score = nn.Linear(width, classes + 1)
        self.bbox_pred = nn.Linear(width, classes * 4)
        nn.init.normal_(self.cls_score.weight, std=0.01)
        nn.init.normal_(self.bbox_pred.weight, std=0.001)
        nn.init.zeros_(self.cls_score.bias)
        nn.init.zeros_(self.bbox_pred.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.cls_score(x).float(), self.bbox_pred(x).unflatten(1, (-1, 4)).float()


class Regions(NamedTuple):
    """The sampled regions of all images."""

    boxes: list[Tensor]
    matched: list[Tensor]  # index of the object, or BACKGROUND_INDEX
    objects: list[GroundTruth]

    @property
    def labels(self) -> Tensor:
        """(R,), 0 for the background."""
        found = [
            torch.zeros_like(number) if not len(truth.labels) else (truth.labels + 1)[number.clamp(0)] * (number >= 0)
            for number, truth in zip(self.matched, self.objects, strict=True)
        ]
        return torch.cat(found)

    def positive(self) -> "Regions":
        kept = [number >= 0 for number in self.matched]
        boxes = [box[keep] for box, keep in zip(self.boxes, kept, strict=True)]
        return Regions(boxes, [number[keep] for number, keep in zip(self.matched, kept, strict=True)], self.objects)


class RCNN(Detector):
    """Faster R-CNN, or Mask R-CNN with `masks`."""

    def __init__(
        self,
        backbone: Pyramid,
        proposals: Proposals,
        classes: int,
        *,
        hidden: int,
        align_samples: int,
        sampling: Sampling,
        selection: Selection,
        mask_head: nn.Module | None = None,
        mask_predictor: nn.Module | None = None,
    ) -> None:
        super().__init__(backbone)
        self.proposals = proposals
        self.sampling, self.selection = sampling, selection
        own = backbone.strides[: backbone.own_levels]
        self.box_align, self.mask_align = (RegionAlign(own, size, align_samples) for size in (7, 14))
        self.box_head = TwoMLPHead(backbone.out_channels * 49, hidden)
        self.box_predictor = BoxPredictor(hidden, classes)
        self.mask_head, self.mask_predictor = mask_head, mask_predictor
        self.coder = BoxCoder((10.0, 10.0, 5.0, 5.0))

    def losses(self, features: list[Tensor], shapes: list[Shape], objects: list[GroundTruth]) -> dict[str, Tensor]:
        logits, codes = self.proposals(features)
        anchors = self.proposals.anchors.levels(features)
        losses = self.proposals.losses(logits, codes, anchors, objects)
        regions = self.sample(self.proposals.regions(logits, codes, anchors, shapes), objects)
        losses |= self.box_losses(features, regions, shapes)
        if self.mask_head is not None:
            losses["mask"] = self.mask_loss(features, regions.positive(), shapes)
        return losses

    def sample(self, proposed: list[Tensor], objects: list[GroundTruth]) -> Regions:
        boxes, matched = [], []
        for box, truth in zip(proposed, objects, strict=True):
            box = torch.cat([box, truth.boxes])  # so that there are positives while proposals are poor
            index, number = self.sampling(box, truth, every_object=False)
            boxes.append(box[index])
            matched.append(number)
        return Regions(boxes, matched, objects)

    def box_losses(self, features: list[Tensor], regions: Regions, shapes: list[Shape]) -> dict[str, Tensor]:
        pooled, weight = pool_some(self.box_align, features, regions.boxes, shapes)
        logits, codes = self.box_predictor(self.box_head(pooled))
        labels = regions.labels if weight else torch.zeros(1, dtype=torch.long, device=logits.device)
        positive = labels.nonzero()[:, 0]
        chosen = codes[positive, labels[positive] - 1]
        target = torch.cat(
            [
                self.coder.encode_single(truth.boxes[number], box)
                for box, number, truth in zip(*regions.positive(), strict=True)
            ]
        )
        box_loss = F.smooth_l1_loss(chosen, target, beta=1 / 9, reduction="sum") / len(labels)
        return {"class": weight * F.cross_entropy(logits, labels), "box": box_loss + codes.sum() * 0}

    def mask_loss(self, features: list[Tensor], regions: Regions, shapes: list[Shape]) -> Tensor:
        assert self.mask_head is not None
        assert self.mask_predictor is not None
        pooled, weight = pool_some(self.mask_align, features, regions.boxes, shapes)
        logits = self.mask_predictor(self.mask_head(pooled)).float()  # (R, K, M, M)
        if not weight:
            return logits.sum() * 0
        if any(truth.masks is None for truth in regions.objects):
            raise InputError(
                "the targets have no masks; Mask R-CNN needs one for each object, fasterrcnn learns from boxes alone"
            )
        target = torch.cat([mask_targets(*region, logits.shape[-1]) for region in zip(*regions, strict=True)])
        rows = torch.arange(len(logits), device=logits.device)
        return F.binary_cross_entropy_with_logits(logits[rows, regions.labels - 1], target)

    def considered(self, features: list[Tensor], shapes: list[Shape]) -> list[Candidates]:
        objectness, shifts = self.proposals(features)
        regions = self.proposals.regions(objectness, shifts, self.proposals.anchors.levels(features), shapes)
        logits, codes = self.box_predictor(self.box_head(self.box_align(features, regions)))
        counts = [len(region) for region in regions]

        def boxes(codes: Tensor, region: Tensor) -> Decode:
            return lambda rows, labels: self.coder.decode_single(codes[rows, labels], region[rows])

        parts = zip(logits.softmax(1)[:, 1:].split(counts), codes.split(counts), regions, strict=True)
        return [Candidates(score, boxes(code, region), (len(region),)) for score, code, region in parts]

    def predictions(self, features: list[Tensor], shapes: list[Shape]) -> list[dict[str, Tensor]]:
        found = super().predictions(features, shapes)
        if self.mask_head is not None and self.mask_predictor is not None:
            masks = self.mask_predictor(self.mask_head(self.mask_align(features, [each["boxes"] for each in found])))
            labels = torch.cat([each["labels"] for each in found])
            masks = masks[torch.arange(len(labels), device=labels.device), labels].float().sigmoid()
            for each, part in zip(found, masks.split([len(each["boxes"]) for each in found]), strict=True):
                each["masks"] = part
        return found

    # ---- in parts, for graphs, which cannot choose: the program around them does ------------------------------------

    def proposed(self, images: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Of every anchor its logit (B, A) and box (B, A, 4), and the maps that regions are taken from."""
        features = list(self.backbone(images).values())
        return *self.proposals.everywhere(features), features[: len(self.box_align.strides)]

    def judged(self, features: Sequence[Tensor], regions: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Scores (R, K) and boxes (R, K, 4) of one image's regions, which come for each level."""
        logits, codes = self.box_predictor(self.box_head(self.box_align.sorted_by_level(features, regions)))
        boxes = self.coder.decode_single(codes.flatten(1), torch.cat(list(regions)))  # (R, 4K)
        return logits.softmax(1)[:, 1:], boxes.reshape(codes.shape)

    def outlined(self, features: Sequence[Tensor], regions: Sequence[Tensor]) -> Tensor:
        """Probabilities (R, K, M, M) within one image's boxes, which come for each level."""
        assert self.mask_head is not None
        assert self.mask_predictor is not None
        pooled = self.mask_align.sorted_by_level(features, regions)
        return self.mask_predictor(self.mask_head(pooled)).float().sigmoid()

    def raw(self, images: Tensor, *, proposals: int = 1000, detections: int = 100) -> list[Any]:
        """With as many regions as published counts assume: proposals for boxes, detections for masks."""
        features = list(self.backbone(images).values())
        outputs: list[Any] = [self.proposals(features)]
        channels = features[0].shape[1]
        outputs.append(self.box_predictor(self.box_head(images.new_zeros(proposals, channels, 7, 7))))
        if self.mask_head is not None and self.mask_predictor is not None:
            outputs.append(self.mask_predictor(self.mask_head(images.new_zeros(detections, channels, 14, 14))))
        return outputs


def rcnn(*, masks: bool) -> Callable[..., RCNN]:
    """What builds Mask R-CNN or, without `masks`, Faster R-CNN."""

    def build(
        backbone: str | nn.Module,
        classes: int,
        *,
        channels: int = 256,
        norm: Norm | None = None,
        levels: Sequence[int] | None = None,
        hidden: int = 1024,
        convs: int = 4,
        anchor_sizes: Sequence[float | Sequence[float]] | None = None,
        anchor_ratios: Sequence[float] = (0.5, 1.0, 2.0),
        proposals: int = 1000,
        samples: int = 512,
        align_samples: int = 2,
        score_threshold: float = 0.05,
        nms_threshold: float = 0.5,
        detections: int = 100,
    ) -> RCNN:
        base = Pyramid(backbone, channels=channels, levels=levels, extra="pool", norm=norm)
        anchors = Anchors(base.strides, level_cells(anchor_sizes, anchor_ratios, base.strides, (8,)))
        mask_head = MaskRCNNHeads(channels, [channels] * convs, 1, norm_layer(norm)) if masks else None
        return RCNN(
            base,
            Proposals(channels, anchors, Sampling(0.7, 0.3, 256, 0.5), candidates=(2000, 1000), proposals=proposals),
            classes,
            hidden=hidden,
            align_samples=align_samples,
            sampling=Sampling(0.5, 0.5, samples, 0.25),
            selection=Selection(score_threshold, nms_threshold, proposals * classes, detections),
            mask_head=mask_head,
            mask_predictor=MaskRCNNPredictor(channels, channels, classes) if masks else None,
        )

    return build


HEADS = {"detect": {"maskrcnn": rcnn(masks=True), "fasterrcnn": rcnn(masks=False)}}
