"""UperNet: pooled context on the coarsest map, a feature pyramid, all levels joined; trained with an auxiliary head.

Xiao, Liu, Zhou, Jiang, Sun: "Unified Perceptual Parsing for Scene Understanding", arXiv 1807.10221.

Shapes: B batch, K classes, c head width, H W the finest map.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import InputError
from vitreous.heads.semantic import Decoder, DecoderOutput, check_decoder, conv_norm_relu, initialise_decoder
from vitreous.layers.patch import resize


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


HEADS = {"segment": {"upernet": UperNet}}
