"""Polygons of COCO as masks, with exactly the pixels that pycocotools gives.

pycocotools walks along each outline on a grid five times as fine as the pixels; wherever the walk crosses the middle of
a pixel column, the pixel below the crossing begins or ends a run. Here the crossings are computed instead of walked to,
and only those within the picture: the work is bounded by the picture and the number of corners, however far away the
corners lie, and all polygons of an object are drawn at once.

Legend: H W picture, P corners of all polygons, K crossings.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.files.limits import MAX_CORNER_PIXELS, MAX_CROSSINGS

GRID_FACTOR = 5  # pycocotools draws outlines on a grid finer by this much
CROSSINGS_AT_ONCE = 1 << 18  # crossings that are computed together, which bounds the memory they take

Integers = NDArray[np.int64]


class Edges(NamedTuple):
    """Of all outlines, on the fine grid; each is computed from the end that comes first in its longer direction.

    So two polygons that share an edge share its pixels.
    """

    x: Integers  # (P,) where it begins
    y: Integers
    slope: NDArray[np.float64]  # (P,) steps across its longer direction for each one along it
    steep: NDArray[np.bool_]  # (P,) longer down than across
    first: Integers  # (P,) pixel column within the picture that it crosses
    columns: Integers  # (P,) how many it crosses
    polygon: Integers  # (P,) number of the outline


def draw(polygons: Sequence[Sequence[float]], height: int, width: int) -> NDArray[np.bool_]:
    """(H, W) the pixels within any of the polygons x0 y0 x1 y1 ...; a ValueError says what is wrong with them."""
    edges = edges_of(polygons, width)
    mask = np.zeros((height, width), np.bool_)
    parts = list(_crossings(edges, height, width))
    if not parts:
        return mask
    # Every outline crosses a column an even number of times, so that, sorted, they start and end runs alternately.
    places = np.sort(np.concatenate(parts)) % (width * (height + 1))  # (K,) column by column, H + 1 rows each
    left, right = (int(place) // (height + 1) for place in (places.min(), places.max()))
    change = np.zeros((right - left + 1) * (height + 1), np.int32)
    np.add.at(change, places[0::2] - left * (height + 1), 1)
    np.subtract.at(change, places[1::2] - left * (height + 1), 1)
    inside = np.cumsum(change, out=change).reshape(-1, height + 1)[:, :height] > 0  # (columns, H)
    mask[:, left : right + 1] = inside.T
    return mask


def edges_of(polygons: Sequence[Sequence[float]], width: int) -> Edges:
    """What there is to draw, after checks; work in proportion to the corners."""
    lengths = np.array([len(polygon) for polygon in polygons], np.int64)
    values = np.array(list(chain.from_iterable(polygons)), np.float64)
    wrong = (lengths < 6) | (lengths % 2 == 1)
    far = ~(np.abs(values) < MAX_CORNER_PIXELS)  # NaN is not near either
    if wrong.any() or far.any():
        place = int(wrong.argmax()) if wrong.any() else int(np.searchsorted(np.cumsum(lengths), far.argmax(), "right"))
        raise ValueError(f"a polygon needs x and y of three corners or more, but one has {_short(polygons[place])}")
    start = np.trunc(values.reshape(-1, 2) * GRID_FACTOR + 0.5).astype(np.int64)  # (P, 2)
    corners = lengths // 2
    following = np.arange(1, len(start) + 1)
    following[np.cumsum(corners) - 1] -= corners  # the last corner of each is followed by its first
    end = start[following]
    across, down = np.abs(end - start).T
    steep = down > across
    turned = np.where(steep, start[:, 1] > end[:, 1], start[:, 0] > end[:, 0])
    begin, last = np.where(turned[:, None], end, start), np.where(turned[:, None], start, end)
    over = np.where(steep, last[:, 0] - begin[:, 0], last[:, 1] - begin[:, 1])
    # Column c is crossed between 5 c + 2 and 5 c + 3.
    left, right = np.minimum(start[:, 0], end[:, 0]), np.maximum(start[:, 0], end[:, 0])
    first = np.maximum(-(-(left - GRID_FACTOR // 2) // GRID_FACTOR), 0)
    count = np.maximum(np.minimum((right - GRID_FACTOR // 2 - 1) // GRID_FACTOR, width - 1) - first + 1, 0)
    if count.sum() > MAX_CROSSINGS:
        raise ValueError(f"its outlines cross {count.sum():,} columns of pixels; at most {MAX_CROSSINGS:,} are drawn")
    slope = over / np.maximum(np.maximum(across, down), 1)
    return Edges(begin[:, 0], begin[:, 1], slope, steep, first, count, np.repeat(np.arange(len(lengths)), corners))


def outline_length(polygons: Sequence[Sequence[float]]) -> float:
    """At least that of the outlines of all polygons together, in pixels."""
    total = 0.0
    for polygon in polygons:
        corners = np.asarray(polygon, np.float64).reshape(-1, 2)
        total += float(np.abs(corners - np.roll(corners, 1, 0)).sum())
    return total


def _crossings(edges: Edges, height: int, width: int) -> Iterator[Integers]:
    """(K,) polygon, column and row of crossings in one number, some edges at a time."""
    crossing = np.flatnonzero(edges.columns)
    ends = np.cumsum(edges.columns[crossing])
    begin = 0
    while begin < len(crossing):
        done = ends[begin - 1] if begin else 0
        stop = max(begin + 1, int(np.searchsorted(ends, done + CROSSINGS_AT_ONCE, "right")))
        some = crossing[begin:stop]
        edge = np.repeat(some, edges.columns[some])  # (K,)
        within = np.arange(len(edge)) - np.repeat(ends[begin:stop] - edges.columns[some] - done, edges.columns[some])
        column = edges.first[edge] + within
        upper = _upper(edges, edge, GRID_FACTOR * column + GRID_FACTOR // 2 + 1)
        row = np.ceil(np.clip((upper + 0.5) / GRID_FACTOR - 0.5, 0, height)).astype(np.int64)
        yield (edges.polygon[edge] * width + column) * (height + 1) + row
        begin = stop


def _upper(edges: Edges, edge: Integers, across: Integers) -> Integers:
    """(K,) the smaller y of the two points of the walk along an edge between which x comes to, or leaves, `across`."""
    x, y, slope = edges.x[edge], edges.y[edge], edges.slope[edge]
    along = across - 1 - x  # of an edge that goes across, one step is one to the right
    flat = np.minimum(np.trunc(y + slope * along + 0.5), np.trunc(y + slope * (along + 1) + 0.5))
    rising = slope > 0
    guess = np.floor((across - 0.5 - x) / np.where(slope == 0, 1.0, slope)) - 1  # at most two steps too early
    early = np.zeros(len(edge), np.int64)
    for step in range(3):
        reached = np.trunc(x + slope * (guess + step) + 0.5) >= across
        early += reached != rising
    return np.where(edges.steep[edge], y + guess + early - 1, flat).astype(np.int64)


def _short(polygon: Sequence[float]) -> str:
    numbers = ", ".join(f"{value:g}" for value in polygon[:8])
    return f"{len(polygon)} numbers ({numbers}{', ...' if len(polygon) > 8 else ''})"
