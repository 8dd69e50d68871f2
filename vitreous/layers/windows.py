"""Splits a map of any size into square windows, each with room for an extra token, and joins them again.

Windows start at the top left; the last ones of a row or column may reach beyond the map. The padding there has no
meaning: `keys` hides it from attention, and `join` removes it.

Shapes: B batch, H W map, w window, nh nw grid of windows, n = nh nw, t = extra + w w tokens per window, C channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.layers.exporting import exports_any_size


class Windows:
    """The windows of maps like `x` (B, H, W, C), with `extra` (0 or 1) tokens before those of the map."""

    keys: Tensor | None = None  # (B n, 1, 1, t), False for padding; None if there is none
    summary_keys: Tensor | None = None  # (1, 1, 1, n), False for summaries without a window; None if there are none

    def __init__(self, x: Tensor, w: int, extra: int) -> None:
        B, H, W, _ = x.shape
        self.batch, self.size, self.w, self.extra = B, (H, W), w, extra
        nh, nw = (H + w - 1) // w, (W + w - 1) // w
        self.grid, self.tokens = (nh, nw), extra + w * w
        self.prepare(x.device)

    def prepare(self, device: torch.device) -> None:
        (H, W), (nh, nw), w = self.size, self.grid, self.w
        self.beyond = (nh * w - H, nw * w - W)
        if any(self.beyond):
            rows, columns = (
                torch.arange(count * w, device=device).view(-1, w) < side for count, side in ((nh, H), (nw, W))
            )
            real = (rows[:, None, :, None] & columns[None, :, None, :]).reshape(nh * nw, w * w)
            self.keys = F.pad(real, (self.extra, 0), value=True).repeat(self.batch, 1)[:, None, None]

    def split(self, x: Tensor, token: Tensor | None = None) -> Tensor:
        """(B, H, W, C) -> (B n, t, C), each window led by `token` (1, 1, C) if there is room for it."""
        B, C, (nh, nw), w = self.batch, x.shape[-1], self.grid, self.w
        if any(self.beyond):
            x = F.pad(x, (0, 0, 0, self.beyond[1], 0, self.beyond[0]))
        windows = x.reshape(B, nh, w, nw, w, C).transpose(2, 3).reshape(B * nh * nw, w * w, C)
        return windows if token is None else torch.cat([token.expand(B * nh * nw, 1, C), windows], 1)

    def join(self, windows: Tensor) -> Tensor:
        """The map's tokens of (B n, t, C): (B, H, W, C)."""
        (H, W), (nh, nw), w, C = self.size, self.grid, self.w, windows.shape[-1]
        x = windows[:, self.extra :].reshape(self.batch, nh, nw, w, w, C).transpose(2, 3)
        x = x.reshape(self.batch, nh * w, nw * w, C)
        return x[:, :H, :W] if any(self.beyond) else x

    def summaries(self, windows: Tensor) -> Tensor:
        """The first token of each window of (B n, t, C): (B, n, C)."""
        return windows[:, 0].unflatten(0, (self.batch, self.grid[0] * self.grid[1]))


class ExportedWindows(Windows):
    """The same with shapes that are one formula for all sizes, as a program exported for any size requires.

    Reshaping a grid of windows is a different operation if the grid has one row, so tokens are gathered by index
    instead. There is one summary more than windows, which `summary_keys` hides.
    """

    def prepare(self, device: torch.device) -> None:
        (H, W), (nh, nw), w, t = self.size, self.grid, self.w, self.tokens
        slot = torch.arange(nh * nw * t, device=device)
        window, inner = slot // t, slot % t - self.extra
        across = window - window // nw * nw  # ONNX has no remainder of a size that varies
        row, column = window // nw * w + inner // w, across * w + inner % w
        self.source = torch.where(inner < 0, H * W, row.clamp(max=H - 1) * W + column.clamp(max=W - 1))  # (n t,)
        real = (inner < 0) | ((row < H) & (column < W))
        self.keys = real.repeat(self.batch).view(-1, 1, 1, t)  # expanded, it would be a view for one window only
        place = torch.arange(H * W, device=device)
        row = place // W
        column = place - row * W
        self.place = (row // w * nw + column // w) * t + self.extra + row % w * w + column % w  # (H W,)
        number = torch.arange(nh * nw + 1, device=device)
        self.first = number.clamp(max=nh * nw - 1) * t  # (n + 1,)
        self.summary_keys = (number < nh * nw)[None, None, None]

    def split(self, x: Tensor, token: Tensor | None = None) -> Tensor:
        source = x.flatten(1, 2)
        if token is not None:
            source = torch.cat([source, token.expand(self.batch, 1, -1)], 1)  # (B, N + 1, C)
        return source.index_select(1, self.source).flatten(0, 1).unflatten(0, (-1, self.tokens))

    def join(self, windows: Tensor) -> Tensor:
        return self.per_image(windows).index_select(1, self.place).unflatten(1, self.size)

    def summaries(self, windows: Tensor) -> Tensor:
        return self.per_image(windows).index_select(1, self.first)

    def per_image(self, windows: Tensor) -> Tensor:
        return windows.flatten(0, 1).unflatten(0, (self.batch, -1))  # (B, n t, C)


def make_windows(x: Tensor, w: int, extra: int) -> Windows:
    return (ExportedWindows if exports_any_size(x) else Windows)(x, w, extra)
