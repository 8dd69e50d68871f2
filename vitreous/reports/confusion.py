"""A confusion matrix as a picture: readable cells for few classes, a heat map for many."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from vitreous.drawing.panels import HEAT_COLOURS, INK, LINE, MARGIN, PAPER, QUIET
from vitreous.reports.chart import axis
from vitreous.reports.figure import DPI, TEXT, TITLE, as_image, new_figure, set_heading, shortened

SIDE = 1000  # pixels of the matrix, roughly; with more classes, neighbours share a pixel
LARGEST_CELL, SMALLEST_NAMED, SMALLEST_NUMBERED = 64, 12, 36  # pixels of a cell
LONGEST_NAME = 24  # letters
ABOVE, BELOW, LEFT = 80, 130, 80  # pixels around the matrix, without the names


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
    side, named = cell * len(counts), cell >= SMALLEST_NAMED
    labels = [shortened(name, LONGEST_NAME) for name in names] if named else []
    letters = round(max(map(len, labels), default=5) * min(11, cell) if named else 50)
    width, height = max(LEFT + letters + side + MARGIN, 640), ABOVE + side + letters + BELOW
    figure = new_figure(width, height, head=ABOVE)
    figure.set_layout_engine("none")  # cells are whole pixels, so that no mistake is lost between two of them
    set_heading(figure, shortened(heading, width // 13), size=TITLE)
    left, bottom = (LEFT + letters) / width, (letters + BELOW) / height
    axes = figure.add_axes((left, bottom, side / width, side / height), facecolor="none")
    axes.set(xlim=(-0.5, len(counts) - 0.5), ylim=(len(counts) - 0.5, -0.5))
    cells = shares(counts).repeat(cell, 0).repeat(cell, 1)
    place = LEFT + letters, letters + BELOW
    drawn = figure.figimage(cells, *place, cmap=colour_map(), vmin=0, vmax=1, origin="upper", zorder=-1)  # below text
    if cell >= SMALLEST_NUMBERED:
        write_numbers(axes, counts, cell)
    label_axes(axes, labels, len(names), min(TEXT, 0.72 * cell * 72 / DPI) if named else TEXT)
    add_scale(figure, drawn, (MARGIN / width, 36 / height, 300 / width, 14 / height))
    return as_image(figure)


def shares(counts: np.ndarray) -> np.ndarray:
    """The square root lets a rare mistake be seen beside the diagonal; nothing at all stays white."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return np.ma.masked_where(counts == 0, np.sqrt(share))


def colour_map() -> Any:
    """From pale to dark, because paper is white."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("confusion", HEAT_COLOURS[::-1]).with_extremes(bad=PAPER)


def write_numbers(axes: Any, counts: np.ndarray, cell: int) -> None:
    share = shares(counts)
    for true, answer in zip(*np.nonzero(counts), strict=True):
        text = str(counts[true, answer])
        size = min(TEXT, 1.5 * cell / max(len(text), 2) * 72 / DPI)
        colour = PAPER if share[true, answer] > 0.45 else INK
        axes.text(answer, true, text, ha="center", va="center", color=colour, fontsize=size)


def label_axes(axes: Any, labels: Sequence[str], classes: int, size: float) -> None:
    """By name, or by number: a thousand names would not be readable."""
    for spine in axes.spines.values():  # first: a spine that is moved makes new ticks
        spine.set_color(LINE)
        spine.set_position(("outward", 2))  # beside the outer cells, not upon them
    if labels:
        axes.set_xticks(range(len(labels)), labels, rotation=90)
        axes.set_yticks(range(len(labels)), labels)
    else:
        ticks = axis([0, classes], pad=0).ticks
        rows = axes.get_ylim()[0] + 0.5
        axes.set_xticks([value / classes * rows for value, _ in ticks], [label for _, label in ticks])
        axes.set_yticks([value / classes * rows for value, _ in ticks], [label for _, label in ticks])
    axes.tick_params(length=0, labelsize=size, labelcolor=QUIET, pad=6)
    axes.set_xlabel("answer", color=INK, fontsize=TEXT)
    axes.set_ylabel("true class", color=INK, fontsize=TEXT)


def add_scale(figure: Any, drawn: Any, place: tuple[float, float, float, float]) -> None:
    bar = figure.colorbar(drawn, cax=figure.add_axes(place), orientation="horizontal")
    bar.outline.set_visible(False)
    bar.set_ticks([0, 1], labels=["0 %", "100 %"])
    bar.ax.tick_params(length=0, labelsize=TEXT - 2, labelcolor=QUIET)
    bar.ax.set_title("share of a true class's images", loc="left", color=QUIET, fontsize=TEXT - 2, pad=4)
