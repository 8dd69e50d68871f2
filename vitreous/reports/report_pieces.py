"""Pieces that all parts of the report are made of: tiles, and the maps the script draws.

Shapes: H W grid of a map.
"""

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from vitreous.drawing.panels import overlay
from vitreous.reports.explanation import Explanation
from vitreous.reports.sheet import shown_heat

TILE_WIDTH = 160  # pixels; ten images of noise stay below five megabytes
LARGEST_LOOKS = 14  # the same for the attention of places, which is told in numbers
LARGEST_MAP = 24  # finer maps are averaged down to this for the interactive view: a pointer cannot tell more apart
SHOWN_GROUPS = 4
NAMED = 6  # clusters of a group that are told by number; explanation.json has all


class Cell(NamedTuple):
    """A map that can be shown: its place among those of its stack, and what is said about it."""

    stack: str  # "methods" or "clusters"
    place: int  # in its atlas: cluster numbers come first, then groups
    heat: np.ndarray  # (H, W) from 0 to 1
    caption: str


def cells_of(item: Explanation) -> list[Cell]:
    """Every map of an image, those of a stack on one grid."""
    grid = fitting(item.picture.width, item.picture.height, LARGEST_MAP)
    cells = [
        Cell(
            "methods",
            index,
            resized(shown_heat(method.heat), grid),
            f"{method.name}: insertion − deletion {number(method.difference)}",
        )
        for index, method in enumerate(item.methods)
    ]
    clusters = item.clusters
    if clusters is None:
        return cells
    scores, spread = clusters.importance[clusters.ranking].tolist(), clusters.entropy.tolist()
    place = {m: rank for rank, m in enumerate(clusters.order, 1)}
    for m, heat in enumerate(clusters.maps):
        caption = f"cluster {m}, rank {place[m]} of {len(place)}: score {number(scores[m], 3)}, entropy {spread[m]:.2f}"
        cells.append(Cell("clusters", m, reduced(shown_heat(heat)), caption))
    shown = zip(clusters.groups[:SHOWN_GROUPS], clusters.group_drop, strict=False)
    for index, (group, lost) in enumerate(shown, len(clusters.maps)):
        heat = shown_heat(clusters.maps[list(group)].sum(0))
        caption = f"{named(group)}: {number(lost)} log-odds lost when removed together"
        cells.append(Cell("clusters", index, reduced(heat), caption))
    return cells


def named(group: Sequence[int]) -> str:
    """Its members, or how many and the first of them."""
    numbers = ", ".join(map(str, group[:NAMED]))
    if len(group) > NAMED:
        return f"{len(group)} clusters: {numbers}, …"
    return f"cluster {numbers}" if len(group) == 1 else f"clusters {numbers}"


def number(value: float, digits: int = 2) -> str:
    """With its sign, and a proper minus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def tile(
    picture: Image.Image, cell: Cell, heat: Tensor, *, alt: str, caption: str, kind: str = "", first: bool = False
) -> str:
    """A still picture of a map, which the script makes a button for the large view; `caption` is HTML."""
    mark = ' data-first="yes"' if first else ""
    still = jpeg_uri(overlay(picture, shown_heat(heat), width=TILE_WIDTH), quality=75)
    return (
        f'<figure class="tile {kind}"><button type="button" class="show" aria-pressed="false" '
        f'data-stack="{cell.stack}" data-cell="{cell.place}" data-caption="{escape(cell.caption)}"{mark}>'
        f'<img alt="{escape(alt)}" src="{still}"></button>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def looks_of(attention: Tensor) -> np.ndarray:
    """Attention (K, H, W) on a coarser grid, values kept."""
    return np.stack([reduced(np.asarray(one), LARGEST_LOOKS) for one in attention])


def reduced(heat: np.ndarray, longest: int = LARGEST_MAP) -> np.ndarray:
    rows, columns = heat.shape
    size = fitting(columns, rows, min(longest, max(rows, columns)))
    return np.asarray(Image.fromarray(heat.astype(np.float32)).resize(size, Image.Resampling.BOX))


def fitting(width: int, height: int, longest: int) -> tuple[int, int]:
    """Width and height of this shape, the longer side as given."""
    factor = longest / max(width, height)
    return max(1, round(width * factor)), max(1, round(height * factor))


def resized(heat: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """On a grid of one size (width, height), whatever the method's own."""
    how = Image.Resampling.BOX if max(heat.shape) > max(size) else Image.Resampling.BICUBIC
    return np.asarray(Image.fromarray(heat.astype(np.float32)).resize(size, how)).clip(0, 1)


def atlas(maps: np.ndarray) -> Image.Image:
    """Maps with values from 0 to 1, one below the other, as a grey picture."""
    return Image.fromarray((np.concatenate(list(maps)) * 255).round().astype(np.uint8))


def jpeg_uri(image: Image.Image, quality: int = 85) -> str:
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=quality, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def png_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
