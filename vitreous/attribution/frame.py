"""Pictures that a model gets filled up at the right and the bottom: nothing there is a part of the picture.

A `Framed` model takes the bare picture and fills it up itself. Whatever hides pixels, takes gradients or measures then
works on the picture alone. Maps from inside the network still cover the filled-up one, and `of_picture` cuts them.

Shapes: h w picture, H W the same filled up; rows and columns of a map.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Framed(nn.Module):
    """Takes normalised pictures (B, 3, h, w); the model in it sees them filled up to (B, 3, H, W)."""

    def __init__(self, model: nn.Module, size: tuple[int, int], filled: tuple[int, int], filling: Tensor) -> None:
        """`filling` is the normalised colour (3,) that the model was trained with."""
        super().__init__()
        self.model, self.size, self.filled = model, size, filled
        self.filling = filling
        self.eval()

    def forward(self, images: Tensor) -> object:
        down, across = (whole - own for whole, own in zip(self.filled, images.shape[2:], strict=True))
        outside = F.pad(torch.zeros_like(images[:1, :1]), (0, across, 0, down), value=1.0)  # (1, 1, H, W)
        filling = self.filling.to(images).view(1, 3, 1, 1)
        return self.model(F.pad(images, (0, across, 0, down)) + outside * filling)


def framed(model: nn.Module, size: tuple[int, int], filled: tuple[int, int], filling: Tensor) -> nn.Module:
    return model if size == filled else Framed(model, size, filled, filling)


def of_picture(maps: Tensor, model: nn.Module) -> Tensor:
    """Maps (..., rows, columns) from inside a model, without what lies on its filling; any other model's as they are.

    The cells that are left are about as large as before, and each is the mean of what it covers.
    """
    if not isinstance(model, Framed):
        return maps
    down, across = (
        cell_shares(cells, cells * own / whole).to(maps)
        for cells, own, whole in zip(maps.shape[-2:], model.size, model.filled, strict=True)
    )
    return down @ maps @ across.T


def cell_shares(cells: int, kept: float) -> Tensor:
    """How the first `kept` of some cells, a fraction included, make up about as many new ones: (new, cells)."""
    count = max(1, round(kept))
    edges = torch.arange(count + 1) * kept / count
    cell = torch.arange(cells)
    covered = (torch.minimum(edges[1:, None], cell + 1) - torch.maximum(edges[:-1, None], cell)).clamp_min(0)
    return covered / covered.sum(1, keepdim=True)
