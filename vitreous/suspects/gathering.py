"""Where a model's maps lie over a data set, and what is there: sums and a few cells, whatever the number of pictures.

Shapes: B pictures, H W their sides, G cells a side of a coarse grid, K classes, M clusters, D numbers of a look.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.attribution.method import to_image
from vitreous.suspects.changes import Seen, ground_colour
from vitreous.suspects.looks import grid_of_looks

GRID_CELLS = 8  # a side: an eighth of a picture is about the smallest thing that a small map can point at
USED = 2.0  # times the share of the map that an even one would have there
CELLS_OF_PICTURE = 4  # of the highest, whose look is kept
MOST_CELLS_KEPT = 2048  # over the data; of more, a random part


class Evidence:
    """Sums over pictures."""

    def __init__(self, classes: int, clusters: int = 0) -> None:
        self.pictures = torch.zeros(classes)  # by answer
        # pictures in which a cell has more than its share of the map
        self.used = torch.zeros(classes, GRID_CELLS, GRID_CELLS)
        self.used_wrongly = torch.zeros(GRID_CELLS, GRID_CELLS)  # by wrong answers
        self.wrong = 0
        self.colour = torch.zeros(3)  # of what is no object
        self.clusters = torch.zeros(clusters, GRID_CELLS, GRID_CELLS)  # their maps, summed
        self.looks = torch.zeros(0, 6)  # of the cells that are kept ...
        self.answers = torch.zeros(0, dtype=torch.long)  # ... the answer of their pictures ...
        self.cells = torch.zeros(0, dtype=torch.long)  # ... where they are ...
        self.chance = torch.zeros(0)  # ... and by which they are kept
        self.random = torch.Generator().manual_seed(0)

    def add(self, seen: Seen, heat: Tensor, labels: Tensor, clusters: Tensor | None = None) -> None:
        """Pictures with their maps (B, H, W), and those of clusters (B, M, H, W)."""
        share, answers = coarse(heat).cpu(), seen.answers.cpu()
        used = (share > USED / GRID_CELLS**2).float()
        self.pictures += torch.bincount(answers, minlength=len(self.pictures))
        self.used.index_add_(0, answers, used)
        wrong = labels != answers
        self.wrong += int(wrong.sum())
        self.used_wrongly += used[wrong].sum(0)
        self.colour += ground_colour(seen).sum((0, 2, 3)).cpu()
        if clusters is not None:
            self.clusters += coarse(clusters.flatten(0, 1)).unflatten(0, clusters.shape[:2]).sum(0).cpu()
        self.keep(grid_of_looks(seen.images, GRID_CELLS).cpu().flatten(1, 2), share.flatten(1), answers)

    def keep(self, looks: Tensor, share: Tensor, answers: Tensor) -> None:
        """The highest cells, those that have more than their share; of too many a random part."""
        value, cell = share.topk(CELLS_OF_PICTURE, 1)  # (B, k)
        row, column = (value > USED / GRID_CELLS**2).nonzero(as_tuple=True)
        cells = cell[row, column]
        self.looks = torch.cat([self.looks, looks[row, cells]])
        self.answers, self.cells = torch.cat([self.answers, answers[row]]), torch.cat([self.cells, cells])
        self.chance = torch.cat([self.chance, torch.rand(len(row), generator=self.random)])
        if len(self.chance) > MOST_CELLS_KEPT:
            kept = self.chance.topk(MOST_CELLS_KEPT).indices.sort().values
            self.looks, self.answers, self.cells, self.chance = (
                values[kept] for values in (self.looks, self.answers, self.cells, self.chance)
            )


def coarse(maps: Tensor) -> Tensor:
    """What speaks for the answer, as shares of the cells: (B, G, G), each of sum one."""
    positive = maps.clamp_min(0)[:, None]
    finer = (
        positive
        if min(maps.shape[1:]) >= GRID_CELLS
        else to_image(maps.clamp_min(0), (GRID_CELLS, GRID_CELLS))[:, None]
    )
    pooled = F.adaptive_avg_pool2d(finer, GRID_CELLS)[:, 0]
    return pooled / pooled.sum((1, 2), keepdim=True).clamp_min(1e-12)
