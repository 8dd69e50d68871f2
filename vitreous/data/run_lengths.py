"""Outlines and run lengths of COCO as masks, and masks as run lengths.

COCO keeps the shape of an object as polygons, as run lengths down the columns (0s first), or as the same run lengths
written as text. Here all of them become boolean arrays with exactly the pixels that pycocotools gives.

faster-coco-eval decodes run lengths, too, but it belongs to the extra `det`, and masks are read without that: a second
decoder would be more code, not less.

Legend: H W picture.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.outlines import draw, edges_of
from vitreous.files.reading import excerpt

_BIT_PLACES = np.arange(0, 35, 5)  # where the characters of a run length begin; seven are enough for 2^34 pixels
_LONGEST_COUNT_BITS = 60  # without a limit a text of a million characters would make numbers of a million bits

Mask = NDArray[np.bool_]  # (H, W)
CocoSegmentation = list[list[float]] | dict[str, Any]


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
