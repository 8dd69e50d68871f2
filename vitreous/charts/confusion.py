"""A confusion matrix as a picture: readable cells for few classes, a heat map for many."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from vitreous.charts.chart import axis
from vitreous.maps.draw import (
    BAR_WIDTH,
    INK,
    LINE,
    MARGIN,
    PAPER,
    QUIET,
    TEXT,
    TITLE,
    colourise,
    fitted,
    font,
    rounded_mask,
    text_width,
)

SIDE = 1000  # pixels of the matrix, roughly; with more classes, neighbours share a pixel
LARGEST_CELL, SMALLEST_NAMED, SMALLEST_NUMBERED = 64, 12, 36
WIDEST_NAME = 260


def groups(classes: int) -> int:
    """Into how many rows the classes go: one each, as far as there are pixels."""
    return min(classes, SIDE)


def confusion_picture(counts: np.ndarray, names: Sequence[str], *, heading: str) -> Image.Image:
    """Rows are the true classes, columns the answers; the colour is the share of the row's images.

    Args:
        counts: (G, G) images, where G is `groups(len(names))`.
        names: Of the classes.
        heading: Above the matrix.
    """
    cell = max(1, min(LARGEST_CELL, SIDE // len(counts)))
    named = cell >= SMALLEST_NAMED
    size = min(TEXT, cell - 2) if named else TEXT
    labels = [fitted(name, size, WIDEST_NAME) for name in names] if named else []
    widest = max((text_width(label, size) for label in labels), default=text_width("00000", TEXT))
    left, top, side = MARGIN + TEXT + 18 + widest + 12, MARGIN + TITLE + 34, cell * len(counts)
    bottom = top + side + (widest if named else TEXT) + 12 + TEXT + 24
    width = max(left + side, MARGIN + text_width(heading, TITLE), MARGIN + 560) + MARGIN
    sheet = Image.new("RGB", (width, bottom + TEXT + MARGIN), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN - 6), fitted(heading, TITLE, width - 2 * MARGIN), INK, font(TITLE))
    sheet.paste(_cells(counts, cell), (left, top))
    draw.rectangle((left - 1, top - 1, left + side, top + side), outline=LINE)
    if cell >= SMALLEST_NUMBERED:
        _write_numbers(draw, counts, (left, top), cell)
    if named:
        _write_names(sheet, labels, (left, top), cell, size)
    else:
        _write_ticks(sheet, len(names), (left, top), side)
    _upright(sheet, "true class", (MARGIN, top + side // 2), TEXT, INK)
    draw.text((left + side / 2, bottom - TEXT - 14), "answer", INK, font(TEXT), anchor="ma")
    _draw_scale(sheet, bottom + 8)
    return sheet


def _cells(counts: np.ndarray, cell: int) -> Image.Image:
    """The square root lets a rare mistake be seen beside the diagonal; nothing at all stays white."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    colours = _colours(share)
    colours[counts == 0] = 255
    side = cell * len(counts)
    return Image.fromarray(colours).resize((side, side), Image.Resampling.NEAREST)


def _colours(share: np.ndarray) -> np.ndarray:
    """From pale to dark, because paper is white."""
    return colourise(1 - np.sqrt(share)).copy()


def _write_numbers(draw: ImageDraw.ImageDraw, counts: np.ndarray, corner: tuple[int, int], cell: int) -> None:
    rows = np.maximum(counts.sum(1), 1)
    for true, answer in zip(*np.nonzero(counts), strict=True):
        text = str(counts[true, answer])
        size = next((size for size in range(TEXT, 8, -1) if text_width(text, size) <= cell - 4), 8)
        centre = corner[0] + (answer + 0.5) * cell, corner[1] + (true + 0.5) * cell
        dark = np.sqrt(counts[true, answer] / rows[true]) > 0.45
        draw.text(centre, text, PAPER if dark else INK, font(size), anchor="mm")


def _write_names(sheet: Image.Image, labels: Sequence[str], corner: tuple[int, int], cell: int, size: int) -> None:
    left, top = corner
    draw = ImageDraw.Draw(sheet)
    end = top + cell * len(labels) + 10
    for place, label in enumerate(labels):
        middle = round((place + 0.5) * cell)
        draw.text((left - 10, top + middle), label, QUIET, font(size), anchor="rm")
        _upright(sheet, label, (left + middle, end), size, QUIET, hanging=True)


def _write_ticks(sheet: Image.Image, classes: int, corner: tuple[int, int], side: int) -> None:
    """Labels by number: a thousand names would not be readable."""
    left, top = corner
    draw = ImageDraw.Draw(sheet)
    for value, label in axis([0, classes], pad=0).ticks:
        place = value / classes * side
        draw.text((left - 10, top + place), label, QUIET, font(TEXT), anchor="rm")
        draw.text((left + place, top + side + 10), label, QUIET, font(TEXT), anchor="ma")


def _upright(
    sheet: Image.Image, text: str, place: tuple[int, int], size: int, colour: str, *, hanging: bool = False
) -> None:
    """Text turned to the left: centred at the height of `place` and right of it, or hanging below it."""
    width, height = text_width(text, size) + 2, size + 6
    stamp = Image.new("L", (width, height), 0)
    ImageDraw.Draw(stamp).text((0, height / 2), text, 255, font(size), anchor="lm")
    stamp = stamp.transpose(Image.Transpose.ROTATE_90)
    x, y = place
    sheet.paste(colour, (x - height // 2, y) if hanging else (x, y - width // 2), stamp)


def _draw_scale(sheet: Image.Image, top: int) -> None:
    draw = ImageDraw.Draw(sheet)
    text = "share of a true class's images:  0 %"
    draw.text((MARGIN, top), text, QUIET, font(TEXT))
    x = MARGIN + text_width(text, TEXT) + 10
    bar = Image.fromarray(np.repeat(_colours(np.linspace(0, 1, BAR_WIDTH))[None], TEXT - 3, axis=0))
    sheet.paste(bar, (x, top + 4), rounded_mask(*bar.size, 4))
    draw.text((x + BAR_WIDTH + 10, top), "100 %", QUIET, font(TEXT))
