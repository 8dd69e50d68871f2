"""What parts of pictures look like: colour and contrast of the cells of a grid, and groups of cells that look alike.

Shapes: B pictures, G cells a side, D numbers of a description, N cells, k groups.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.attribution.segments import k_means


@dataclass(frozen=True, eq=False)
class Look:
    """A group of cells that look alike."""

    centre: Tensor  # (D,), scaled
    radius: float  # distance within which a cell belongs to it
    cells: int  # G of the grid
    scale: Tensor  # (D,), by which descriptions are divided

    def distance(self, looks: Tensor) -> Tensor:
        """Of descriptions (..., D) to the centre."""
        return (looks / self.scale.to(looks) - self.centre.to(looks)).norm(dim=-1)


def grid_of_looks(images: Tensor, cells: int) -> Tensor:
    """Mean and standard deviation of each colour in each cell: (B, G, G, 6)."""
    mean, square = (F.adaptive_avg_pool2d(values, cells) for values in (images, images**2))
    spread = (square - mean**2).clamp_min(0).sqrt()
    return torch.cat([mean, spread], 1).permute(0, 2, 3, 1)  # (B, G, G, D)


def grouped(looks: Tensor, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Groups of rows of (N, D) by k-means++: centres (k, D), and the group of each row."""
    noise = torch.rand(1, min(count, len(looks)), generator=torch.Generator().manual_seed(seed))
    _, group = k_means(looks[None], noise)[0].unique(return_inverse=True)
    sizes = torch.bincount(group)
    centres = torch.zeros(len(sizes), looks.shape[1]).index_add_(0, group, looks) / sizes[:, None]
    return centres, group
