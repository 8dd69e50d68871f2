"""Residual branches: a feed-forward layer with a depth-wise convolution between linear layers; stochastic depth.

Shapes: B batch, H W grid, C channels, R hidden channels. Tokens are (B, H, W, C): to a convolution that is a
channels-last image, so switching between the two views copies nothing.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitreous.layers.conv_norm import with_shortcut
from vitreous.layers.patch import apply_nchw
from vitreous.layers.plain import is_plain

# Larger hidden maps are computed in strips at inference on the CPU. Above 32 MB the allocator maps fresh pages for
# every operation; far below that, a strip stays in cache between operations.
# Measured on 2 cores (AMD EPYC, torch 2.15, 8 x 56 x 56 x 96, R = 4 C): whole 139 ms, strips of 2.4 MB 57 ms.
STRIP_BYTES = 4 << 20
# Without the convolution, pieces can be smaller, about the second-level cache of two cores; but every matrix product
# first rearranges its weights, which needs enough rows to pay off. Measured on one of these cores: emsnet_xtiny at
# 8 x 224 x 224, pieces of 4 MB 0.52 s, of 1 MB 0.42 s; a layer of 384 to 1536 channels, pieces of 170 rows 76 ms, of
# 784 rows 51 ms.
PIECE_BYTES, PIECE_ROWS = 1 << 20, 1024


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
            return checkpoint(self.branch, x, kernel, use_reentrant=False)
        if not self.worth_strips(x):
            return self.branch(x, kernel)
        return self.in_pieces(x) if kernel is None else self.in_strips(x, kernel)

    def kernel(self) -> Tensor | None:
        """The convolution's effective kernel, if it may be used without calling its layer."""
        if self.depthwise is None or not is_plain(self.depthwise):
            return None
        return with_shortcut(self.depthwise.weight) if self.shortcut else self.depthwise.weight

    def worth_strips(self, x: Tensor) -> bool:
        """Strips pay off if memory is the bottleneck. Layers with hooks or changes get all of x at once."""
        if not eager_inference(x):
            return False
        B, H, W, _ = x.shape
        layers = (self.fc1, self.fc2) if self.depthwise is None else (self.fc1, self.depthwise, self.fc2)
        return B * H * W * self.hidden * x.element_size() > STRIP_BYTES and is_plain(*layers)

    def branch(self, x: Tensor, kernel: Tensor | None) -> Tensor:
        u = self.fc1(x)  # (B, H, W, R)
        if kernel is not None:
            bias = self.depthwise.bias  # type: ignore[union-attr]
            u = F.conv2d(u.permute(0, 3, 1, 2), kernel, bias, padding=1, groups=len(kernel)).permute(0, 2, 3, 1)
        elif self.depthwise is not None:
            v = apply_nchw(self.depthwise, u)
            u = u + v if self.shortcut else v
        return self.dropout(self.fc2(self.dropout(F.gelu(u))))  # (B, H, W, C)

    def in_pieces(self, x: Tensor) -> Tensor:
        """Positions are independent, so any of them may be computed together."""
        pieces = x.flatten(0, 2).split(max(PIECE_ROWS, PIECE_BYTES // (self.fc1.out_features * x.element_size())))
        return torch.cat([self.branch(piece, None) for piece in pieces]).view_as(x)

    def in_strips(self, x: Tensor, kernel: Tensor) -> Tensor:
        out = torch.empty_like(x)
        row_bytes = x.shape[2] * self.fc1.out_features * x.element_size()
        for images, rows, halo in strips(x.shape[0], x.shape[1], row_bytes):
            # The halo rows only provide neighbours for the convolution.
            y = self.branch(x[images, halo], kernel)
            out[images, rows] = y[:, rows.start - halo.start : rows.stop - halo.start]
        return out


def eager_inference(x: Tensor) -> bool:
    """Whether this is a plain forward pass on a CPU, where an equivalent but cheaper path may be taken.

    Nothing is being traced or compiled then, so code may branch on sizes.
    """
    traced = not isinstance(x, Tensor) or torch.compiler.is_compiling() or torch.jit.is_tracing()
    return not (traced or torch.is_grad_enabled()) and x.device.type == "cpu"


def strips(images: int, rows: int, row_bytes: int) -> Iterator[tuple[slice, slice, slice]]:
    """Pieces of at most about STRIP_BYTES: whole images together, or rows of one image.

    Yields (images, rows, rows with one neighbour on either side).
    """
    together = max(1, STRIP_BYTES // (rows * row_bytes))
    height = rows if together > 1 else max(1, STRIP_BYTES // row_bytes)
    height = -(-rows // -(-rows // height))  # equal strips: no thin remainder at the bottom
    for first in range(0, images, together):
        for top in range(0, rows, height):
            bottom = min(top + height, rows)
            yield (
                slice(first, min(first + together, images)),
                slice(top, bottom),
                slice(max(top - 1, 0), min(bottom + 1, rows)),
            )


def drop_path(rate: float) -> nn.Module:
    """Stochastic depth: a residual branch is dropped at random, per sample."""
    return DropPath(rate) if rate else nn.Identity()


def drop_path_rates(rate: float, depths: Sequence[int]) -> list[list[float]]:
    """Rates rising evenly from 0 to `rate` over all blocks, the deeper the more often, grouped by stage."""
    rising = iter(np.linspace(0.0, rate, sum(depths)).tolist())
    return [[next(rising) for _ in range(depth)] for depth in depths]
