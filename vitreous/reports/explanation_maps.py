"""The maps that a page of explanations shows, small enough to travel inside it, each with its caption.

Shapes: M clusters, H W grid of a map.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from vitreous.reports.explanation import Explanation
from vitreous.reports.page import signed
from vitreous.reports.sheet import shown_heat

LONGEST_MAP_SIDE = 24  # cells; finer maps are averaged down: a pointer cannot tell more apart
LONGEST_ATTENTION_SIDE = 14  # cells, of the attention of places, which is shown as numbers
SHOWN_GROUPS = 4
LISTED_CLUSTERS = 6  # of a group, by number; explanation.json has all


class Cell(NamedTuple):
    """A map that can be shown: its place among those of its stack, and its caption."""

    stack: str  # "methods" or "clusters"
    place: int  # in its stack: cluster numbers come first, then groups
    heat: np.ndarray  # (H, W) from 0 to 1
    caption: str


def cells_of(item: Explanation) -> list[Cell]:
    """Every map of an image, those of a stack on one grid."""
    grid = _fitting(item.picture.width, item.picture.height, LONGEST_MAP_SIDE)
    cells = [
        Cell(
            "methods",
            index,
            _resized(shown_heat(method.heat), grid),
            f"{method.name}: insertion − deletion {signed(method.difference)}",
        )
        for index, method in enumerate(item.methods)
    ]
    clusters = item.clusters
    if clusters is None:
        return cells
    scores, spread = clusters.importance[clusters.ranking].tolist(), clusters.entropy.tolist()
    rank_of = {m: rank for rank, m in enumerate(clusters.order, 1)}
    for m, heat in enumerate(clusters.maps):
        rank = f"rank {rank_of[m]} of {len(rank_of)}"
        caption = f"cluster {m}, {rank}: score {signed(scores[m], 3)}, entropy {spread[m]:.2f}"
        cells.append(Cell("clusters", m, _averaged(shown_heat(heat), LONGEST_MAP_SIDE), caption))
    shown = zip(clusters.groups[:SHOWN_GROUPS], clusters.group_drop, strict=False)
    for index, (group, lost) in enumerate(shown, len(clusters.maps)):
        heat = shown_heat(clusters.maps[list(group)].sum(0))
        caption = f"{named(group)}: {signed(lost)} log-odds lost when removed together"
        cells.append(Cell("clusters", index, _averaged(heat, LONGEST_MAP_SIDE), caption))
    return cells


def named(group: Sequence[int]) -> str:
    """The clusters of a group, or how many there are and the first of them."""
    numbers = ", ".join(map(str, group[:LISTED_CLUSTERS]))
    if len(group) > LISTED_CLUSTERS:
        return f"{len(group)} clusters: {numbers}, …"
    return f"cluster {numbers}" if len(group) == 1 else f"clusters {numbers}"


def coarse_attention(attention: Tensor) -> np.ndarray:
    """Attention (M, H, W) on a coarser grid, values kept."""
    return np.stack([_averaged(np.asarray(one), LONGEST_ATTENTION_SIDE) for one in attention])


def stacked(maps: np.ndarray) -> Image.Image:
    """Maps with values from 0 to 1, one below the other, as a grey picture."""
    return Image.fromarray((np.concatenate(list(maps)) * 255).round().astype(np.uint8))


def _averaged(heat: np.ndarray, longest: int) -> np.ndarray:
    rows, columns = heat.shape
    size = _fitting(columns, rows, min(longest, max(rows, columns)))
    return np.asarray(Image.fromarray(heat.astype(np.float32)).resize(size, Image.Resampling.BOX))


def _resized(heat: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """On a grid of one size (width, height), whatever the method's own."""
    how = Image.Resampling.BOX if max(heat.shape) > max(size) else Image.Resampling.BICUBIC
    return np.asarray(Image.fromarray(heat.astype(np.float32)).resize(size, how)).clip(0, 1)


def _fitting(width: int, height: int, longest: int) -> tuple[int, int]:
    """Width and height of this shape, the longer side as given."""
    factor = longest / max(width, height)
    return max(1, round(width * factor)), max(1, round(height * factor))
