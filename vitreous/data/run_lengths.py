"""Outlines and run lengths of COCO as masks, and masks as run lengths.

COCO keeps the shape of an object as polygons, as run lengths down the columns (0s first), or as the same run lengths
written as text. Here all of them become boolean arrays with exactly the pixels that pycocotools gives.

Legend: H W picture, P corners of a polygon.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FINER = 5  # pycocotools draws outlines on a grid finer by this much
FARTHEST = 1e5  # pixels; an outline that leaves the picture by so much is a mistake
BITS = np.arange(0, 35, 5)  # where the characters of a run length begin; seven are enough for 2^34 pixels

Mask = NDArray[np.bool_]  # (H, W)
Segmentation = list[list[float]] | dict[str, Any]


def decode(segmentation: Segmentation, height: int, width: int) -> Mask:
    """The pixels of polygons or of a run-length dictionary; a ValueError says what is wrong with it."""
    if isinstance(segmentation, dict):
        return _from_run_lengths(segmentation, height, width)
    mask = np.zeros((height, width), np.bool_)
    for polygon in segmentation:
        mask |= fill(polygon, height, width)
    return mask


def run_lengths(mask: Mask) -> list[int]:
    """COCO's uncompressed run-length code: lengths of the runs of 0, 1, 0, ... down the columns."""
    flat = mask.flatten(order="F")
    if not flat.size:
        return []
    ends = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    lengths = np.diff(np.concatenate([[0], ends, [flat.size]])).tolist()
    return [0, *lengths] if flat[0] else lengths


def encode(mask: Mask) -> dict[str, Any]:
    """A mask as COCO's compressed run lengths, as in result files."""
    return {"size": list(mask.shape), "counts": text_of(run_lengths(mask))}


def fill(polygon: Sequence[float], height: int, width: int) -> Mask:
    """The pixels within one polygon x0 y0 x1 y1 ...; those that its outline enters from above change the colour.

    The outline is walked on a grid five times as fine. Wherever the walk crosses the middle of a pixel column, the
    pixel below the crossing begins or ends a run.
    """
    outline = np.asarray(polygon, np.float64)
    if len(outline) < 6 or len(outline) % 2 or not (np.abs(outline) < FARTHEST).all():
        raise ValueError(f"a polygon needs x and y of three corners or more, but one has {_short(polygon)}")
    corners = np.trunc(outline.reshape(-1, 2) * FINER + 0.5).astype(np.int64)  # (P, 2)
    walk = _walk(corners)  # (steps, 2)
    before, after = walk[:-1], walk[1:]
    across = before[:, 0] != after[:, 0]
    upper = np.minimum(before[across], after[across])  # x of the column to the left of the crossing, higher y
    column = (upper[:, 0] - FINER // 2) / FINER
    there = (column == np.floor(column)) & (column >= 0) & (column <= width - 1)
    mask = np.zeros((height, width), np.bool_)
    if there.any():
        columns = column[there].astype(np.int64)
        first, last = int(columns.min()), int(columns.max())
        row = np.ceil(np.clip((upper[there, 1] + 0.5) / FINER - 0.5, 0, height)).astype(np.int64)
        # Every column is crossed an even number of times, so no run goes on beyond its column.
        crossed = np.bincount((columns - first) * height + row, minlength=(last - first + 1) * height + 1)[:-1]
        mask[:, first : last + 1] = (np.cumsum(crossed) % 2).astype(np.bool_).reshape(-1, height).T
    return mask


def _short(polygon: Sequence[float]) -> str:
    numbers = ", ".join(f"{value:g}" for value in polygon[:8])
    return f"{len(polygon)} numbers ({numbers}{', ...' if len(polygon) > 8 else ''})"


def _walk(corners: NDArray[np.int64]) -> NDArray[np.int64]:
    """(steps, 2) grid points along the closed outline, one for each step along the longer direction of an edge."""
    start, end = corners, np.roll(corners, -1, 0)  # (P, 2)
    length = np.abs(end - start)
    steps, edges = length.max(1), np.arange(len(corners))
    main = (length[:, 1] > length[:, 0]).astype(np.int64)  # 0: mostly across, 1: mostly down
    # Always reckoned in the same direction, so that two polygons that share an edge share its pixels.
    turned = start[edges, main] > end[edges, main]
    first, last = np.where(turned[:, None], end, start), np.where(turned[:, None], start, end)
    slope = (last - first)[edges, 1 - main] / np.maximum(steps, 1)
    edge = np.repeat(edges, steps + 1)  # (steps,)
    place = np.arange(len(edge)) - np.repeat(np.cumsum(steps + 1) - steps - 1, steps + 1)
    along = np.where(turned[edge], steps[edge] - place, place)
    points = np.empty((len(edge), 2), np.int64)
    points[np.arange(len(edge)), main[edge]] = first[edges, main][edge] + along
    points[np.arange(len(edge)), 1 - main[edge]] = np.trunc(first[edges, 1 - main][edge] + slope[edge] * along + 0.5)
    return points


def _from_run_lengths(coded: dict[str, Any], height: int, width: int) -> Mask:
    size, counts = coded.get("size"), coded.get("counts")
    if size is None or counts is None:
        raise ValueError("run lengths need both 'size' and 'counts'")
    if list(size) != [height, width]:
        raise ValueError(f"its run lengths are for a picture of {size} (height, width), not of {[height, width]}")
    lengths = np.asarray(counts if isinstance(counts, list) else counts_of(counts), np.int64)
    if (lengths < 0).any() or lengths.sum() != height * width:
        raise ValueError(f"its run lengths cover {lengths.sum()} pixels, the picture has {height * width}")
    flat = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
    return flat.reshape(width, height).T


def counts_of(text: str | bytes) -> list[int]:
    """Run lengths from COCO's text: five bits a character, lowest first; from the fourth on, differences."""
    symbols = text.encode() if isinstance(text, str) else text
    counts: list[int] = []
    value = shift = 0
    for symbol in symbols:
        bits = symbol - 48
        if not 0 <= bits < 64:
            raise ValueError(f"its run lengths hold the character {chr(symbol)!r}, which the code does not know")
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
    bits = values >> BITS & 31  # (n, places)
    ends = values >> BITS + 5 == np.where(bits & 16, -1, 0)
    last = ends.argmax(1)[:, None]
    place = np.arange(len(BITS))
    symbols = 48 + bits + 32 * (place < last)
    return symbols[place <= last].astype(np.uint8).tobytes().decode("ascii")
