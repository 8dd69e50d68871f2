"""Outlines and run lengths of COCO as masks, and masks as run lengths.

COCO keeps the shape of an object as polygons, as run lengths down the columns (0s first), or as the same run lengths
written as text. Here all of them become boolean arrays with exactly the pixels that pycocotools gives.

pycocotools walks along each outline on a grid five times as fine as the pixels; wherever the walk crosses the middle of
a pixel column, the pixel below the crossing begins or ends a run. Here the crossings are computed instead of walked to,
and only those within the picture: the work is bounded by the picture and the number of corners, however far away the
corners lie, and all polygons of an object are drawn at once.

faster-coco-eval decodes run lengths, too, but it belongs to the extra `det`, and masks are read without that: a second
decoder would be more code, not less.

Legend: H W picture, P corners of all polygons, K crossings.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.files.limits import MAX_CORNER_PIXELS, MAX_CROSSINGS
from vitreous.files.reading import excerpt

GRID_FACTOR = 5  # pycocotools draws outlines on a grid finer by this much
CROSSINGS_AT_ONCE = 1 << 18  # crossings that are computed together, which bounds the memory they take
_BIT_PLACES = np.arange(0, 35, 5)  # where the characters of a run length begin; seven are enough for 2^34 pixels
_LONGEST_COUNT_BITS = 60  # without a limit a text of a million characters would make numbers of a million bits

Mask = NDArray[np.bool_]  # (H, W)
CocoSegmentation = list[list[float]] | dict[str, Any]
Integers = NDArray[np.int64]


def decode_mask(segmentation: CocoSegmentation, height: int, width: int) -> Mask:
    """The pixels of polygons or of a run-length dictionary; a ValueError says what is wrong with it."""
    if isinstance(segmentation, dict):
        return _from_run_lengths(segmentation, height, width)
    return draw(segmentation, height, width)


def require_drawable(segmentation: CocoSegmentation, height: int, width: int) -> None:
    """A ValueError where `decode_mask` would give one, at the price of reading the numbers alone."""
    if isinstance(segmentation, dict):
        _lengths(segmentation, height, width)
    else:
        edges_of(segmentation, width)


def run_length_counts(mask: Mask) -> list[int]:
    """COCO's uncompressed run-length code: lengths of the runs of 0, 1, 0, ... down the columns."""
    flat = mask.flatten(order="F")
    if not flat.size:
        return []
    ends = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    lengths = np.diff(np.concatenate([[0], ends, [flat.size]])).tolist()
    return [0, *lengths] if flat[0] else lengths


def encode(mask: Mask) -> dict[str, Any]:
    """A mask as COCO's compressed run lengths, as in result files."""
    return {"size": list(mask.shape), "counts": text_of(run_length_counts(mask))}


def encode_pixels(pixels: NDArray[np.int64], size: tuple[int, ...]) -> dict[str, Any]:
    """The same from the rising places of a mask's pixels down the columns; work in proportion to them alone."""
    begins = pixels[np.diff(pixels, prepend=-2) > 1]
    ends = pixels[np.diff(pixels, append=math.prod(size) + 1) > 1] + 1
    lengths = np.diff(np.stack([begins, ends], 1).ravel(), prepend=0, append=math.prod(size))
    counts = lengths[:-1] if lengths[-1] == 0 else lengths
    return {"size": list(size), "counts": text_of(counts.tolist())}


def _from_run_lengths(coded: dict[str, Any], height: int, width: int) -> Mask:
    lengths = _lengths(coded, height, width)
    flat = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
    return flat.reshape(width, height).T


def _lengths(coded: dict[str, Any], height: int, width: int) -> NDArray[np.int64]:
    size, counts = coded.get("size"), coded.get("counts")
    if size is None or counts is None:
        raise ValueError("run lengths need both 'size' and 'counts'")
    if not isinstance(size, list | tuple) or list(size) != [height, width]:
        raise ValueError(
            f"its run lengths are for a picture of {excerpt(size)} (height, width), not of {[height, width]}"
        )
    found = counts if isinstance(counts, list) else counts_of(counts)
    if not all(isinstance(count, int) for count in found):
        raise ValueError("its run lengths are not whole numbers")
    covered, pixels = sum(found), height * width
    if covered != pixels or not all(0 <= count <= pixels for count in found):
        raise ValueError(f"its run lengths cover {excerpt(covered)} pixels, the picture has {pixels}")
    return np.array(found, np.int64)


def counts_of(text: str | bytes) -> list[int]:
    """Run lengths from COCO's text: five bits a character, lowest first; from the fourth on, differences."""
    if not isinstance(text, str | bytes):
        raise ValueError("its run lengths are neither a list nor a text")
    symbols = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    counts: list[int] = []
    value = shift = 0
    for symbol in symbols:
        bits = symbol - 48
        if not 0 <= bits < 64:
            raise ValueError(f"its run lengths hold the character {chr(symbol)!r}, which the code does not know")
        if shift > _LONGEST_COUNT_BITS:
            raise ValueError("its run lengths hold a number that no picture has pixels for")
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:  # the last of this number; its highest bit is the sign
            value -= (bits & 16) << shift - 4
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    if shift:
        raise ValueError("its run lengths end in the middle of a number")
    return counts


def text_of(counts: Sequence[int]) -> str:
    """The inverse of `counts_of`."""
    values = np.array(counts, np.int64)[:, None]  # (n, 1)
    values[3:] -= values[1:-2].copy()
    bits = values >> _BIT_PLACES & 31  # (n, places)
    ends = values >> _BIT_PLACES + 5 == np.where(bits & 16, -1, 0)
    last = ends.argmax(1)[:, None]
    place = np.arange(len(_BIT_PLACES))
    symbols = 48 + bits + 32 * (place < last)
    return symbols[place <= last].astype(np.uint8).tobytes().decode("ascii")


# ---- outlines --------------------------------------------------------------------------------------------------


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
