"""Decoders that label every pixel from the maps of a backbone, fine to coarse.

`PaCaHead` is the segmentation head of PaCa-ViT (arXiv 2203.11987, CVPR version): as many clusters as classes, learned
under an auxiliary loss of their own, are the only keys and values of a single attention layer.

`SemanticFPN` resizes the levels of a feature pyramid to one size and adds them. Kirillov, Girshick, He, Dollár:
"Panoptic Feature Networks", arXiv 1901.02446. The paper's group norm is batch norm here by default, as in the
segmentation results of the backbones' papers.

`UperNet` pools context on the coarsest map, builds a feature pyramid and joins all levels; it is trained with an
auxiliary head. Xiao, Liu, Zhou, Jiang, Sun: "Unified Perceptual Parsing for Scene Understanding", arXiv 1807.10221.

Shapes: B batch, C channels per input map, c head width, K classes, H W the finest input map, N = HW.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork

from vitreous.errors import InputError
from vitreous.layers.clustering import assign
from vitreous.layers.patch import resize
from vitreous.layers.tap import Tap


class DecoderOutput(NamedTuple):
    logits: Tensor  # (B, K, H, W) at the finest map's size
    auxiliary: Tensor | None = None  # (B, K, h, w), trained beside it


class Decoder(nn.Module):
    """Base of the decoders: built of the maps' channels and the number of classes.

    `forward(maps, auxiliary=…)` gives a `DecoderOutput`; without `auxiliary` it may leave out what only losses need.
    """

    auxiliary_loss: str | None = None  # what the loss of the auxiliary output is called, if there is one


class BatchNorm(nn.BatchNorm2d):
    """Batch norm that, for a single value per channel, trains with its running statistics.

    Pooling one image to one cell leaves such a value, which has no variance.
    """

    def forward(self, input: Tensor) -> Tensor:
        if self.training and input.numel() == input.shape[1]:
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(input)


def conv_norm_relu(in_dim: int, dim: int, kernel_size: int = 1, *, norm: str = "bn") -> nn.Sequential:
    """Convolution, norm, ReLU; "gn" norms groups of channels of each image, whatever the batch."""
    # At most 32 groups of at least eight channels: a map pooled to one cell is normalised over the group alone.
    layer = BatchNorm(dim) if norm == "bn" else nn.GroupNorm(math.gcd(dim, min(32, max(1, dim // 8))), dim)
    conv = nn.Conv2d(in_dim, dim, kernel_size, padding=kernel_size // 2, bias=False)
    return nn.Sequential(conv, layer, nn.ReLU())


def check_decoder(channels: Sequence[int], classes: int, norm: str = "bn", **widths: int) -> None:
    """Refuse arguments that no decoder can be built with."""
    if classes < 2:
        raise InputError(f"classes={classes} given; at least 2 are needed: count the background too")
    if min(widths.values()) < 1 or not channels:
        given = ", ".join(f"{name}={width}" for name, width in widths.items())
        raise InputError(f"{given}, channels={tuple(channels)} given; a head needs at least 1 of each")
    if norm not in ("bn", "gn"):
        raise InputError(f"norm={norm!r} given; accepted: 'bn' for batch norm, 'gn' for group norm")


def initialise_decoder(decoder: nn.Module, *classifiers: nn.Conv2d) -> None:
    """Initialise convolutions by Kaiming's scheme, and classifiers with small normal values."""
    for module in decoder.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for classifier in classifiers:
        nn.init.normal_(classifier.weight, std=0.01)


def pixel_loss(logits: Tensor, labels: Tensor, *, ignore: int = 255) -> Tensor:
    """Cross-entropy at the size of the labels (B, H, W), averaged over the pixels that are not ignored; 0 for none."""
    # A batch without a single labelled pixel must not give 0/0.
    counted = (labels != ignore).sum().clamp(min=1)
    logits = resize(logits.float(), labels.shape[1:])
    return F.cross_entropy(logits, labels, ignore_index=ignore, reduction="sum") / counted


class ClusterProjection(nn.Module):
    """Linear, BatchNorm over channels, ReLU on cluster tokens (B, K, 4c) -> (B, K, c)."""

    def __init__(self, in_dim: int, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, dim)
        self.norm = nn.BatchNorm1d(dim)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.relu(self.norm(self.linear(tokens).transpose(1, 2))).transpose(1, 2)


class PaCaHead(Decoder):
    """Class clusters over a pyramid, then attention of every position over them.

    Taps: `clusters` (B, K, H, W), each map summing to one; `attention` (B, K, H, W), summing to one over K.
    """

    auxiliary_loss = "clusters"

    def __init__(self, channels: Sequence[int], classes: int, *, width: int = 256, dropout: float = 0.1) -> None:
        super().__init__()
        check_decoder(channels, classes, width=width)
        wide = width * len(channels)
        self.inputs = nn.ModuleList(conv_norm_relu(channel, width) for channel in channels)
        self.query = conv_norm_relu(wide, width)
        self.clustering = nn.Sequential(conv_norm_relu(wide, width), nn.Conv2d(width, classes, 1))
        self.clusters = Tap()
        self.key, self.value = ClusterProjection(wide, width), ClusterProjection(wide, width)
        self.attention = Tap()
        self.proj = conv_norm_relu(width, width)
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = nn.Conv2d(width, classes, 1)
        initialise_decoder(self, self.classifier)

    def forward(self, maps: Sequence[Tensor], *, auxiliary: bool = True) -> DecoderOutput:
        size = maps[0].shape[2:]
        reduced = [resize(reduce(level), size) for reduce, level in zip(self.inputs, maps, strict=True)]
        x = torch.cat(reduced, 1)  # (B, 4c, H, W)
        cluster_logits = self.clustering(x)  # (B, K, H, W)
        assignment = self.clusters(assign(cluster_logits.permute(0, 2, 3, 1)))  # (B, K, H, W)
        tokens = assignment.flatten(2) @ x.flatten(2).transpose(1, 2)  # (B, K, 4c), not normalised
        q = self.query(x).flatten(2).transpose(1, 2)  # (B, N, c)
        y = self.attend(q, self.key(tokens), self.value(tokens), size)  # (B, c, H, W)
        return DecoderOutput(self.classifier(self.dropout(self.proj(y))), cluster_logits)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, size: torch.Size) -> Tensor:
        """One head and no 1/sqrt(d): the released weights were trained that way."""
        if not self.attention.listening:
            out = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], scale=1.0)[:, 0]
        else:
            weights = (q @ k.transpose(1, 2)).softmax(-1)  # (B, N, K)
            weights = self.attention(weights.transpose(1, 2).unflatten(2, size))  # (B, K, H, W)
            out = weights.flatten(2).transpose(1, 2) @ v
        return out.transpose(1, 2).unflatten(2, size)


PACA_HEAD_KEYS = [  # of the original release -> ours
    (r"^convs\.(\d+)\.conv\.", r"inputs.\1.0."),
    (r"^convs\.(\d+)\.bn\.", r"inputs.\1.1."),
    (r"^q\.0\.conv\.", "query.0."),
    (r"^q\.0\.bn\.", "query.1."),
    (r"^clustering\.0\.conv\.", "clustering.0.0."),
    (r"^clustering\.0\.bn\.", "clustering.0.1."),
    (r"^k\.0\.", "key.linear."),
    (r"^k\.2\.", "key.norm."),
    (r"^v\.0\.", "value.linear."),
    (r"^v\.2\.", "value.norm."),
    (r"^proj\.conv\.", "proj.0."),
    (r"^proj\.bn\.", "proj.1."),
    (r"^conv_seg\.", "classifier."),
]


class SemanticFPN(Decoder):
    """Each level is convolved once for every doubling up to the finest map's size, all are added and classified.

    Args:
        pyramid: Channels of the feature pyramid.
        width: Channels of the layers after it.
        dropout: Probability of dropping a channel before the classifier.
        norm: Norm of the layers after the pyramid: "bn" or "gn".
    """

    def __init__(
        self,
        channels: Sequence[int],
        classes: int,
        *,
        pyramid: int = 256,
        width: int = 128,
        dropout: float = 0.1,
        norm: str = "bn",
    ) -> None:
        super().__init__()
        check_decoder(channels, classes, norm, pyramid=pyramid, width=width)
        self.scales = nn.ModuleList(
            nn.ModuleList(conv_norm_relu(width if step else pyramid, width, 3, norm=norm) for step in range(max(1, i)))
            for i in range(len(channels))
        )
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = nn.Conv2d(width, classes, 1)
        initialise_decoder(self, self.classifier)
        self.fpn = FeaturePyramidNetwork(list(channels), pyramid)  # starts its convolutions itself

    def forward(self, maps: Sequence[Tensor], *, auxiliary: bool = True) -> DecoderOutput:
        levels = list(self.fpn(OrderedDict(enumerate(maps))).values())
        return DecoderOutput(self.classifier(self.dropout(self.gather(levels))))

    def gather(self, levels: list[Tensor]) -> Tensor:
        """Level i is enlarged i times, through the sizes of the finer levels, so that any image size works."""
        total = self.scales[0][0](levels[0])  # type: ignore[index]
        for i, steps in enumerate(self.scales[1:], 1):
            x = levels[i]
            for finer, convolve in zip(reversed(levels[:i]), steps, strict=True):  # type: ignore[call-overload]
                x = resize(convolve(x), finer.shape[2:])
            total = total + x
        return total  # (B, width, H, W)


class PyramidPooling(nn.Module):
    """The coarsest map and its means over grids of several sizes, merged by one convolution."""

    def __init__(self, dim: int, width: int, pools: Sequence[int], norm: str) -> None:
        super().__init__()
        self.pools = tuple(pools)
        self.branches = nn.ModuleList(conv_norm_relu(dim, width, norm=norm) for _ in pools)
        self.merge = conv_norm_relu(dim + len(pools) * width, width, 3, norm=norm)

    def forward(self, x: Tensor) -> Tensor:
        pooled = (
            branch(F.adaptive_avg_pool2d(x, side)) for side, branch in zip(self.pools, self.branches, strict=True)
        )
        return self.merge(torch.cat([x, *(resize(context, x.shape[2:]) for context in pooled)], 1))


class UperNet(Decoder):
    """The main head and, for losses, a small convolutional head on the second coarsest map.

    Args:
        width: Channels of the main head.
        pools: Sides of the grids to which the coarsest map is pooled.
        auxiliary_width: Channels of the auxiliary head.
        dropout: Probability of dropping a channel before a classifier.
        norm: "bn" or "gn".
    """

    auxiliary_loss = "auxiliary"

    def __init__(
        self,
        channels: Sequence[int],
        classes: int,
        *,
        width: int = 512,
        pools: Sequence[int] = (1, 2, 3, 6),
        auxiliary_width: int = 256,
        dropout: float = 0.1,
        norm: str = "bn",
    ) -> None:
        super().__init__()
        check_decoder(channels, classes, norm, width=width, auxiliary_width=auxiliary_width)
        if not pools or min(pools) < 1:
            raise InputError(f"pools={tuple(pools)} given; sides of grids are needed, each at least 1: (1, 2, 3, 6)")
        self.context = PyramidPooling(channels[-1], width, pools, norm)
        self.lateral = nn.ModuleList(conv_norm_relu(channel, width, norm=norm) for channel in channels[:-1])
        self.smooth = nn.ModuleList(conv_norm_relu(width, width, 3, norm=norm) for _ in channels[:-1])
        self.fuse = conv_norm_relu(len(channels) * width, width, 3, norm=norm)
        self.classifier = nn.Conv2d(width, classes, 1)
        self.auxiliary = conv_norm_relu(channels[-2], auxiliary_width, 3, norm=norm)
        self.auxiliary_classifier = nn.Conv2d(auxiliary_width, classes, 1)
        self.dropout = nn.Dropout2d(dropout)
        initialise_decoder(self, self.classifier, self.auxiliary_classifier)

    def forward(self, maps: Sequence[Tensor], *, auxiliary: bool = True) -> DecoderOutput:
        levels = [lateral(level) for lateral, level in zip(self.lateral, maps, strict=False)]
        levels.append(self.context(maps[-1]))
        for i in range(len(levels) - 1, 0, -1):
            levels[i - 1] = levels[i - 1] + resize(levels[i], levels[i - 1].shape[2:])
        smooth = [smooth(level) for smooth, level in zip(self.smooth, levels, strict=False)]
        size = maps[0].shape[2:]
        x = self.fuse(torch.cat([resize(level, size) for level in (*smooth, levels[-1])], 1))  # (B, c, H, W)
        logits = self.classifier(self.dropout(x))
        beside = self.auxiliary_classifier(self.dropout(self.auxiliary(maps[-2]))) if auxiliary else None
        return DecoderOutput(logits, beside)


HEADS = {"segment": {"fpn": SemanticFPN, "upernet": UperNet, "paca": PaCaHead}}
