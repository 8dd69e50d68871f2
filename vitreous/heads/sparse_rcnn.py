"""Sparse R-CNN: a fixed set of learned boxes, refined by six heads, each predicting one object at most.

Sun et al.: "Sparse R-CNN: End-to-End Object Detection with Learnable Proposals", CVPR 2021, arXiv 2011.12450. Neither
anchors nor non-maximum suppression: in training, predictions and objects are matched one to one at the least cost.

Shapes: B batch, N proposals, C channels, K classes, n objects of an image.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import box_convert, generalized_box_iou, generalized_box_iou_loss, sigmoid_focal_loss

from vitreous.errors import InputError, to_install_extra
from vitreous.heads.boxes import Candidates, Decode, Detector, GroundTruth, Selection, Shape, ignored_boxes
from vitreous.heads.pyramid import Norm, Pyramid
from vitreous.heads.regions import RegionAlign
from vitreous.layers.attention import split_heads
from vitreous.layers.plain import is_plain

LOSS_WEIGHTS = {"class": 2.0, "box": 5.0, "overlap": 2.0}  # of the losses, and of the costs of a match
REGION_CELLS = 7  # of a region, along each side


class DynamicInteraction(nn.Module):
    """Two linear layers over a region's features (49, C) whose weights are made from the proposal's own feature."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.inner = inner
        self.weights = nn.Linear(width, 2 * width * inner)
        self.norm1, self.norm2 = nn.LayerNorm(inner), nn.LayerNorm(width)
        self.out, self.norm3 = nn.Linear(width * REGION_CELLS**2, width), nn.LayerNorm(width)

    def forward(self, proposals: Tensor, regions: Tensor) -> Tensor:
        """Proposals (BN, C), regions (BN, 49, C) -> (BN, C)."""
        _, C = proposals.shape
        first, second = self.weights(proposals).chunk(2, 1)
        x = F.relu(self.norm1(torch.bmm(regions, first.reshape(-1, C, self.inner))))  # (BN, 49, c)
        x = F.relu(self.norm2(torch.bmm(x, second.reshape(-1, self.inner, C))))  # (BN, 49, C)
        return F.relu(self.norm3(self.out(x.flatten(1))))


def linear_tower(width: int, layers: int) -> nn.Sequential:
    parts = [(nn.Linear(width, width, bias=False), nn.LayerNorm(width), nn.ReLU()) for _ in range(layers)]
    return nn.Sequential(*(part for layer in parts for part in layer))


def self_attention(attention: nn.MultiheadAttention, x: Tensor) -> Tensor:
    """Attention of (B, N, C) to itself. torch's module reads its output layer's weights instead of calling it."""
    if is_plain(attention.out_proj) and not torch.compiler.is_exporting():  # fused, it has no translation
        return attention(x, x, x, need_weights=False)[0]
    qkv = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
    q, k, v = (split_heads(y, attention.num_heads) for y in qkv.chunk(3, -1))  # (B, h, N, d)
    return attention.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class DynamicHead(nn.Module):
    """One round: proposals attend to each other, interact with their regions, and predict."""

    def __init__(self, width: int, classes: int, *, inner: int, hidden: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 8, batch_first=True)
        self.interaction = DynamicInteraction(width, inner)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.class_tower, self.box_tower = linear_tower(width, 1), linear_tower(width, 3)
        self.logits, self.codes = nn.Linear(width, classes), nn.Linear(width, 4)

    def forward(self, proposals: Tensor, regions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Proposals (B, N, C), regions (BN, 49, C) -> logits (B, N, K), codes (B, N, 4), proposals."""
        B, N, _ = proposals.shape
        x = self.norm1(proposals + self_attention(self.attention, proposals))
        x = self.norm2(x + self.interaction(x.flatten(0, 1), regions).unflatten(0, (B, N)))
        x = self.norm3(x + self.mlp(x))
        return self.logits(self.class_tower(x)).float(), self.codes(self.box_tower(x)).float(), x


class SparseRCNN(Detector):
    """`inner` channels of the dynamic layers, `hidden` ones of the feed-forward layers."""

    def __init__(
        self,
        backbone: str | nn.Module,
        classes: int,
        *,
        channels: int = 256,
        norm: Norm | None = None,
        levels: Sequence[int] | None = None,
        proposals: int = 100,
        rounds: int = 6,
        inner: int = 64,
        hidden: int = 2048,
        score_threshold: float = 0.0,
        detections: int = 100,
    ) -> None:
        if channels % 8:
            raise InputError(f"channels={channels} given; the 8 attention heads of Sparse R-CNN need a multiple of 8")
        base = Pyramid(backbone, channels=channels, levels=levels, extra=None, norm=norm)
        super().__init__(base)
        # The overlap of 1 suppresses nothing.
        self.selection = Selection(score_threshold, 1.0, detections, detections)
        self.boxes = nn.Parameter(torch.tensor([0.5, 0.5, 1.0, 1.0]).repeat(proposals, 1))  # all start as the image
        self.features = nn.Parameter(torch.randn(proposals, channels))
        self.heads = nn.ModuleList(DynamicHead(channels, classes, inner=inner, hidden=hidden) for _ in range(rounds))
        self.align = RegionAlign(base.strides, REGION_CELLS, 2)
        self.coder = BoxCoder((2.0, 2.0, 1.0, 1.0), bbox_xform_clip=math.log(100000 / 16))
        for parameter in self.heads.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
        for head in self.heads:
            assert isinstance(head, DynamicHead)
            nn.init.constant_(head.logits.bias, -math.log(99))  # a prior of one in a hundred, for the focal loss
            nn.init.normal_(head.codes.weight, std=0.001)  # boxes start as proposed; small data sets learn much sooner
            nn.init.zeros_(head.codes.bias)

    def rounds(self, features: list[Tensor], shapes: list[Shape]) -> list[tuple[Tensor, Tensor]]:
        """Logits (B, N, K) and boxes (B, N, 4) of every round."""
        return self.refined(features, self.boxes.new_tensor(shapes))

    def refined(self, features: list[Tensor], sizes: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The same for heights and widths (B, 2)."""
        scale = sizes.flip(1).repeat(1, 2)[:, None]  # (B, 1, 4)
        boxes = box_convert(self.boxes, "cxcywh", "xyxy") * scale
        x = self.features.expand(len(sizes), -1, -1)
        answers = []
        for head in self.heads:
            regions = self.align(features, list(boxes)).flatten(2).transpose(1, 2)  # (BN, 49, C)
            logits, codes, x = head(x, regions)
            boxes = self.coder.decode_single(codes.flatten(0, 1), boxes.flatten(0, 1)).view_as(codes)
            answers.append((logits, boxes))
            boxes = boxes.detach()
        return answers

    def losses(self, features: list[Tensor], shapes: list[Shape], objects: list[GroundTruth]) -> dict[str, Tensor]:
        count = max(sum(len(truth.boxes) for truth in objects), 1)
        total = {name: features[0].new_zeros((), dtype=torch.float32) for name in LOSS_WEIGHTS}
        for logits, boxes in self.rounds(features, shapes):
            for logit, box, truth in zip(logits, boxes, objects, strict=True):
                for name, loss in image_losses(logit, box, truth).items():
                    total[name] = total[name] + LOSS_WEIGHTS[name] * loss / count
        return total

    def considered(self, features: list[Tensor], shapes: list[Shape]) -> list[Candidates]:
        logits, boxes = self.rounds(features, shapes)[-1]

        def taken(boxes: Tensor) -> Decode:
            return lambda rows, labels: boxes[rows]

        parts = zip(logits.sigmoid(), boxes, strict=True)
        return [Candidates(score, taken(box), (len(box),)) for score, box in parts]

    def raw(self, images: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Without choosing levels: regions are zeros of the right size."""
        features = list(self.backbone(images).values())
        x = self.features.expand(len(images), -1, -1)
        outputs = []
        for head in self.heads:
            regions = features[0].new_zeros(x.shape[0] * x.shape[1], REGION_CELLS**2, x.shape[2])
            outputs.append(head(x, regions))
            x = outputs[-1][2]
        return outputs


def image_losses(logits: Tensor, boxes: Tensor, truth: GroundTruth) -> dict[str, Tensor]:
    """Sums over one image's proposals: logits (N, K), boxes (N, 4)."""
    scale = boxes.new_tensor(truth.shape[::-1] * 2)  # (4,)
    rows, numbers = least_cost_match(logits.detach(), boxes.detach(), truth)
    target = torch.zeros_like(logits)
    target[rows, truth.labels[numbers]] = 1.0
    counted = ~ignored_boxes(boxes.detach(), truth)
    counted[rows] = True
    return {
        "class": sigmoid_focal_loss(logits[counted], target[counted], alpha=0.25, gamma=2.0, reduction="sum"),
        "box": F.l1_loss(boxes[rows] / scale, truth.boxes[numbers] / scale, reduction="sum"),
        "overlap": generalized_box_iou_loss(boxes[rows], truth.boxes[numbers], reduction="sum"),
    }


@torch.no_grad()
def least_cost_match(logits: Tensor, boxes: Tensor, truth: GroundTruth) -> tuple[Tensor, Tensor]:
    """Indices of matched proposals and objects, one to one, with the least total cost."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        hint = to_install_extra("det")
        raise InputError(f"Sparse R-CNN needs scipy to match boxes in training: {hint}") from error
    score = logits[:, truth.labels].sigmoid()  # (N, n)
    positive = 0.25 * (1 - score) ** 2 * -(score + 1e-8).log()
    negative = 0.75 * score**2 * -(1 - score + 1e-8).log()
    scale = boxes.new_tensor(truth.shape[::-1] * 2)
    cost = (
        LOSS_WEIGHTS["class"] * (positive - negative)
        + LOSS_WEIGHTS["box"] * torch.cdist(boxes / scale, truth.boxes / scale, p=1)
        - LOSS_WEIGHTS["overlap"] * generalized_box_iou(boxes, truth.boxes)
    )
    # A box may be infinite; matching must not fail before the loss is reported.
    rows, numbers = linear_sum_assignment(cost.nan_to_num(1e6, 1e6, -1e6).cpu().numpy())
    return torch.as_tensor(rows, device=boxes.device), torch.as_tensor(numbers, device=boxes.device)


HEADS = {"detect": {"sparsercnn": SparseRCNN}}
