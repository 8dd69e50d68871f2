"""Branches that work on pooled tokens and propagate the result back to every position.

Tokens are pooled to cells of p x p, embedded, mixed by convolution or attention, and propagated to the positions of
their cell. Any size can be pooled: the last cells may reach beyond the map and pool what is left of it.

Shapes: B batch, H W grid, N = HW, c channels, h heads, d = c / h, p period of pooling; H' W' grid of windows.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.layers.attention import attend, split_heads
from vitreous.layers.exporting import exports_any_size
from vitreous.layers.inference import linear
from vitreous.layers.patch import apply_nchw
from vitreous.layers.tap import Tap

WINDOW_SIDE = 3  # of the local attention; windows overlap: they are two cells apart
WINDOW_CELLS = WINDOW_SIDE**2


class Propagate(nn.Module):
    """Depth-wise transposed convolution whose kernel is its stride: a cell becomes p x p weighted copies of itself.

    Windows do not overlap, so it is one multiplication per value, in rows of p c neighbours at a time.
    """

    def __init__(self, dim: int, period: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(period, period, dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        p, _, c = self.weight.shape
        if exports_any_size(x):  # torch.export cannot handle a view of six axes of unknown sizes
            kernel = self.weight.permute(2, 0, 1).unsqueeze(1)
            return F.conv_transpose2d(x.permute(0, 3, 1, 2), kernel, self.bias, p, groups=c).permute(0, 2, 3, 1)
        B, H, W, _ = x.shape
        row = x.repeat(1, 1, 1, p).unsqueeze(2)  # (B, H, 1, W, p c)
        out = torch.addcmul(self.bias.repeat(p), row, self.weight.view(p, 1, p * c))  # (B, H, p, W, p c)
        return out.reshape(B, H * p, W * p, c)


def pool_cells(x: Tensor, period: int, *, largest: bool) -> Tensor:
    """Largest or mean value in windows of p x p; the last windows pool what is left of the image.

    In a program for any size, two empty cells are added at the bottom and the right. Otherwise it could assume that
    every grid has a single cell. `zero_outside` keeps the added cells out of the result.
    """
    x, function = x.permute(0, 3, 1, 2), F.max_pool2d if largest else F.avg_pool2d
    if not exports_any_size(x):
        return function(x, period, period, ceil_mode=True).permute(0, 2, 3, 1)
    down, across = ((cell_count(size, period) + 2) * period - size for size in x.shape[2:])
    y = function(F.pad(x, (0, across, 0, down), value=-torch.inf if largest else 0.0), period)
    if not largest:  # of each window, the part that is in the image
        y = y / F.avg_pool2d(F.pad(torch.ones_like(x[:1, :1]), (0, across, 0, down)), period)
    return y.permute(0, 2, 3, 1)


def cell_count(size: int, period: int) -> int:
    return (size - 1) // period + 1


def grid_mask(x: Tensor, grid: tuple[int, int]) -> Tensor:
    rows, columns = (torch.arange(x.shape[i + 1], device=x.device) < grid[i] for i in (0, 1))
    return rows[:, None] & columns  # (H, W)


def zero_outside(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Set everything outside the grid to zero, as a convolution's padding."""
    if (x.shape[1], x.shape[2]) == grid:
        return x
    return torch.where(grid_mask(x, grid).unsqueeze(2), x, 0.0)  # (B, H, W, C)


class PooledBranch(nn.Module, ABC):
    """Pooled tokens, embedded, mixed by the subclass, and propagated back to the full grid."""

    def __init__(self, dim: int, width: int, period: int) -> None:
        super().__init__()
        self.period = period
        self.embed = nn.Linear(dim, width)
        self.propagate = Propagate(width, period)
        self.output = Tap()

    @abstractmethod
    def mix(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Mix the cells (B, H, W, c); only those within `grid` are real."""

    def forward(self, pooled: Tensor, size: tuple[int, int]) -> Tensor:
        H, W = size
        y = self.propagate(self.mix(self.embed(pooled), (cell_count(H, self.period), cell_count(W, self.period))))
        return apply_nchw(self.output, y[:, :H, :W])  # pooling rounded up: cut at the bottom and right


class Coordinates(PooledBranch):
    """Depth-wise convolution along rows, then along columns, of tokens twice as wide."""

    def __init__(self, dim: int, period: int, kernel_size: int) -> None:
        super().__init__(dim, 2 * dim, period)
        k, around = kernel_size, kernel_size // 2
        self.across = nn.Conv2d(2 * dim, 2 * dim, (1, k), padding=(0, around), groups=2 * dim)
        self.down = nn.Conv2d(2 * dim, 2 * dim, (k, 1), padding=(around, 0), groups=2 * dim)

    def mix(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return apply_nchw(self.down, zero_outside(apply_nchw(self.across, zero_outside(x, grid)), grid))


class LocalAttention(PooledBranch):
    """C-MHSA: attention among the cells of 3x3 windows, with weights predicted from the window's summary."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, dim, period=4)
        self.heads = heads
        self.summary = nn.Conv2d(dim, dim, 3, stride=2, padding=1, groups=dim)
        self.weights = nn.Linear(dim, WINDOW_CELLS * WINDOW_CELLS * heads)
        self.values = nn.Linear(dim, dim)
        self.map, self.centre = Tap(), Tap()

    def mix(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        _, H, W, _ = x.shape
        x = zero_outside(x, grid)
        weights = (
            self.weights(apply_nchw(self.summary, x))
            .unflatten(-1, (self.heads, WINDOW_CELLS, WINDOW_CELLS))
            .softmax(-1)
        )
        weights = self.show(weights)  # (B, H', W', h, 9 queries, 9 keys)
        values = (
            F.pad(zero_outside(linear(self.values, x), grid), (0, 0, 1, 1, 1, 1))
            .unfold(1, WINDOW_SIDE, 2)
            .unfold(2, WINDOW_SIDE, 2)
        )
        values = values.unflatten(3, (self.heads, -1)).flatten(-2)  # (B, H', W', h, d, 9 keys)
        out = (values @ weights.transpose(-2, -1)).flatten(3)  # (B, H', W', 9 c)
        out = zero_outside(out, (cell_count(grid[0], 2), cell_count(grid[1], 2))).flatten(1, 2).transpose(1, 2)
        return F.fold(out, (H, W), WINDOW_SIDE, padding=1, stride=2).permute(0, 2, 3, 1)  # (B, H, W, c)

    def show(self, weights: Tensor) -> Tensor:
        if not (self.map.listening or self.centre.listening):
            return weights
        seen, middle = self.map(weights.permute(0, 3, 4, 5, 1, 2)), WINDOW_CELLS // 2  # (B, h, 9, 9, H', W')
        # The middle row passes through its own tap, so that gradients reach it there too.
        row = self.centre(seen[:, :, middle]).unsqueeze(2)
        seen = torch.cat((seen[:, :, :middle], row, seen[:, :, middle + 1 :]), 2)
        return seen.permute(0, 4, 5, 1, 2, 3)


class GlobalAttention(PooledBranch):
    """G-MHSA: attention among all cells."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, dim, period=6)
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.map = Tap()
        self.proj = nn.Linear(dim, dim)

    def mix(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        _, H, W, _ = x.shape
        q, k, v = linear(self.qkv, zero_outside(x, grid).flatten(1, 2)).chunk(3, -1)  # (B, N, c)
        q, k, v = (split_heads(y, self.heads) for y in (q, k, v))  # (B, h, N, d)
        keys = None if grid == (H, W) else grid_mask(x, grid).flatten()[None]
        y = attend(q, k, v, self.map, (H, W), keys=keys)  # (B, N, c)
        return linear(self.proj, y).unflatten(1, (H, W))
