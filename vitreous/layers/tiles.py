"""A map in tiles: pieces small enough to stay in cache, each with the neighbours that a convolution needs.

Only a tile's own intermediate results are ever held, so the memory of a layer does not grow with its hidden width. And
a tile is the work of one thread: threads that share every operation wait for each other at the end of each, hundreds of
times in a network, which takes a multiple of the time if other programs use the same cores.

Shapes: B batch, H W grid, C channels.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from vitreous.layers.plain import is_divisible
from vitreous.runtime.threads import Result, in_threads, threads_allowed

# A tile's widest map. Measured on two cores of an AMD EPYC that other programs use too (second-level cache 512 KB),
# seconds of processor time of paca_tiny with tiles of 1, 2 and 4 MB: 8 x 224 x 224 1.34, 1.31, 1.30; 1024 x 1024 4.6,
# 4.2, 4.2. When all threads shared every operation, the former took 4.2. With AVX-512 and twice the cache, tiles of
# 6 MB were 1.05 (224 x 224) and 1.19 times (1024 x 1024) as fast as 2 MB by the clock, 12 MB 1.07 and 0.99 times.
TILE_BYTES = 6 << 20
MIN_POSITIONS = 256  # of a tile: a matrix product first rearranges its weights, which must pay off
STRIP_BYTES = 16 << 20  # of the widest map of strided convolutions


class GridTile(NamedTuple):
    """Some images, or a rectangle of one; `halo` is how many neighbours it has on every side, up to the map's edge."""

    images: slice
    rows: slice
    columns: slice
    halo: int = 0

    def outer(self, x: Tensor) -> Tensor:
        """The tile of a map (B, H, W, C), with its neighbours."""
        return x[self.images, self._wider(self.rows, x.shape[1]), self._wider(self.columns, x.shape[2])]

    def inner(self, x: Tensor) -> Tensor:
        """The tile of a map (B, H, W, C), without them."""
        return x[self.images, self.rows, self.columns]

    def cropped(self, y: Tensor) -> Tensor:
        """What `outer` gave, or was made of it, without the neighbours."""
        top, left = min(self.halo, self.rows.start), min(self.halo, self.columns.start)
        height, width = self.rows.stop - self.rows.start, self.columns.stop - self.columns.start
        return y[:, top : top + height, left : left + width]

    def _wider(self, part: slice, end: int) -> slice:
        return slice(max(part.start - self.halo, 0), min(part.stop + self.halo, end))


def tiles(shape: Sequence[int], width: int, *, halo: int = 0, item_bytes: int = 4) -> list[GridTile]:
    """Tiles that cover maps of this shape (B, H, W, …) once; `width`: channels of the widest map that is made of one.

    Whole images together if several fit, else rectangles with as few neighbours as possible.
    """
    B, H, W = shape[:3]
    positions = max(MIN_POSITIONS, TILE_BYTES // (width * item_bytes))
    if positions >= H * W:
        together = positions // (H * W)
        return [
            GridTile(slice(first, min(first + together, B)), slice(0, H), slice(0, W), halo)
            for first in range(0, B, together)
        ]
    down, across = fewest_neighbours(H, W, positions, halo)
    rows, columns = even_parts(H, down), even_parts(W, across)
    return [GridTile(slice(i, i + 1), row, column, halo) for i in range(B) for row in rows for column in columns]


def fewest_neighbours(H: int, W: int, positions: int, halo: int) -> tuple[int, int]:
    """Into how many parts to divide rows and columns, so that few positions are computed twice."""
    best = (0, 1, 1)
    for across in range(1, W + 1):
        wide = -(-W // across)
        down = -(-H // max(1, positions // wide))
        work = (H + 2 * halo * (down - 1)) * (W + 2 * halo * (across - 1))
        if best[0] == 0 or work < best[0]:
            best = (work, down, across)
        if down == 1:
            break
    return best[1:]


def even_parts(length: int, count: int) -> list[slice]:
    """At most `count` parts of nearly equal length: no thin remainder at the end."""
    edges = [length * i // count for i in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges) if stop > start]


def each_tile(work: Callable[[GridTile], Result], among: Sequence[GridTile], x: Tensor) -> list[Result]:
    """The results of all tiles of x, in order; several at once where other threads would do the same.

    Where tensors have no values, as when memory is counted, one tile of each shape stands for all.
    """
    if not isinstance(x, FakeTensor):
        return in_threads(work, among) if threads_allowed(x) else [work(tile) for tile in among]
    known: dict[int, Result] = {}
    for tile in among:
        images = tile.images.stop - tile.images.start
        if images not in known:
            known[images] = work(tile)
    return [known[tile.images.stop - tile.images.start] for tile in among]


def in_row_strips(layer: nn.Module, x: Tensor) -> Tensor:
    """A chain of strided convolutions on tokens (B, H, W, C), some rows at a time.

    A strip begins at a multiple of the chain's stride and is computed with enough rows around it that the zeros with
    which convolutions surround it do not reach what is kept.
    """
    traced = not isinstance(x, Tensor) or torch.compiler.is_compiling() or torch.jit.is_tracing()
    if traced or torch.is_grad_enabled() or not is_chain(layer):
        return layer(x)
    convolutions = [part for part in layer.modules() if isinstance(part, nn.Conv2d)]
    stride, reach = 1, 0  # of the chain, in rows of x
    for convolution in convolutions:
        reach += stride * (convolution.kernel_size[0] // 2)
        stride *= int(convolution.stride[0])
    B, H, W, C = x.shape
    widest = max(part.out_channels // max(1, part.stride[0] ** 2) for part in convolutions)
    row_bytes = B * stride * W * max(C, widest) * x.element_size()
    height = max(2 * -(-reach // stride), STRIP_BYTES // row_bytes) * stride  # of a strip
    if 2 * height >= H or not is_divisible(layer):
        return layer(x)
    halo = -(-reach // stride) * stride
    parts = [slice(top, min(top + height, H)) for top in range(0, H, height)]
    first = strip_of(layer, x, parts[0], halo, stride)
    out = first.new_empty(B, -(-H // stride), *first.shape[2:])
    out[:, : first.shape[1]] = first

    def place(strip: GridTile) -> None:
        y = strip_of(layer, x, strip.rows, halo, stride)
        top = strip.rows.start // stride
        out[:, top : top + y.shape[1]] = y

    each_tile(place, [GridTile(slice(0, B), rows, slice(0, W)) for rows in parts[1:]], x)
    return out


def is_chain(layer: nn.Module) -> bool:
    """Whether its convolutions follow one another, with nothing in between that looks at other positions."""
    local = (nn.Conv2d, nn.BatchNorm2d, nn.LayerNorm, nn.GELU, nn.Identity)
    if isinstance(layer, nn.Sequential):
        return all(is_chain(part) for part in layer)
    return isinstance(layer, local) or getattr(layer, "chain", False)


def strip_of(layer: nn.Module, x: Tensor, rows: slice, halo: int, stride: int) -> Tensor:
    above = min(halo, rows.start)
    y = layer(x[:, rows.start - above : rows.stop + halo])
    return y[:, above // stride : above // stride - (-(rows.stop - rows.start) // stride)]
