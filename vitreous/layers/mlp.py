"""Residual branches: a feed-forward layer with a depth-wise convolution between linear layers; stochastic depth.

Shapes: B batch, H W grid, C channels, R hidden channels. Tokens are (B, H, W, C): to a convolution that is a
channels-last image, so switching between the two views copies nothing.
"""

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitreous.layers.conv_norm import with_shortcut
from vitreous.layers.inference import depthwise_gelu, eager_inference, linear
from vitreous.layers.patch import apply_nchw
from vitreous.layers.plain import is_plain
from vitreous.layers.tiles import GridTile, each_tile, tiles
from vitreous.runtime.bf16_convolution import defined_again

# Larger hidden maps are computed in tiles at inference on the CPU. Above 32 MB the allocator maps fresh pages for every
# operation; far below that, a tile stays in cache between operations.
WORTH_TILES_BYTES = 4 << 20


class ConvMlp(nn.Module):
    """Linear C→R, depth-wise 3x3 convolution unless switched off, GELU, Linear R→C.

    With `shortcut` the convolution's input is added to its output. That is the same as a one added to the centre
    of each kernel, which costs nothing per position, so it is computed that way.
    """

    recompute = False  # in the backward pass, instead of keeping the hidden maps

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        depthwise: bool = True,
        shortcut: bool = True,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden, bias=bias)
        self.depthwise = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden) if depthwise else None
        self.fc2 = nn.Linear(hidden, dim, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.hidden, self.shortcut = hidden, shortcut

    def forward(self, x: Tensor) -> Tensor:
        kernel = self.kernel()
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(
                self.branch, x, kernel, use_reentrant=False, context_fn=lambda: (nullcontext(), defined_again())
            )
        return self.in_tiles(x, kernel) if self.worth_tiles(x) else self.branch(x, kernel)

    def kernel(self) -> Tensor | None:
        """The convolution's effective kernel, if it may be used without calling its layer."""
        if self.depthwise is None or not is_plain(self.depthwise):
            return None
        return with_shortcut(self.depthwise.weight) if self.shortcut else self.depthwise.weight

    def worth_tiles(self, x: Tensor) -> bool:
        """Tiles pay off if memory is the bottleneck. Layers with hooks or changes get all of x at once."""
        if not eager_inference(x):
            return False
        B, H, W, _ = x.shape
        return B * H * W * self.hidden * x.element_size() > WORTH_TILES_BYTES and self.divisible

    @property
    def divisible(self) -> bool:
        return is_plain(*(layer for layer in (self.fc1, self.depthwise, self.fc2) if layer is not None))

    @property
    def halo(self) -> int:
        """How far its convolution looks."""
        return 0 if self.depthwise is None else 1

    def branch(self, x: Tensor, kernel: Tensor | None, tile: GridTile | None = None) -> Tensor:
        """Of all positions; or of a tile, given with its neighbours."""
        u = linear(self.fc1, x, gelu=self.depthwise is None)  # (B, H, W, R)
        if kernel is not None:
            bias = self.depthwise.bias  # type: ignore[union-attr]
            u = depthwise_gelu(u.permute(0, 3, 1, 2), kernel, bias).permute(0, 2, 3, 1)
        elif self.depthwise is not None:
            v = apply_nchw(self.depthwise, u)
            u = F.gelu(u + v if self.shortcut else v)
        u = u if tile is None else tile.cropped(u)
        return self.dropout(linear(self.fc2, self.dropout(u)))  # (B, H, W, C)

    def in_tiles(self, x: Tensor, kernel: Tensor | None) -> Tensor:
        out = torch.empty_like(x)

        def place(tile: GridTile) -> None:
            tile.inner(out).copy_(self.branch(tile.outer(x), kernel, tile))

        each_tile(place, tiles(x.shape, self.hidden, halo=self.halo, item_bytes=x.element_size()), x)
        return out


def drop_path(rate: float) -> nn.Module:
    """Stochastic depth: a residual branch is dropped at random, per sample."""
    return DropPath(rate) if rate else nn.Identity()


def drop_path_rates(rate: float, depths: Sequence[int]) -> list[list[float]]:
    """Rates rising evenly from 0 to `rate` over all blocks, the deeper the more often, grouped by stage."""
    rising = iter(np.linspace(0.0, rate, sum(depths)).tolist())
    return [[next(rising) for _ in range(depth)] for depth in depths]
