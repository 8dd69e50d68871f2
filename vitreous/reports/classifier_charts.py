"""Charts of a classifier: a confusion matrix, with readable cells for few classes and as a heat map for many, and a
reliability diagram, which shows how often answers of a given confidence were right."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from vitreous.drawing.panels import HEAT_COLOURS, INK, LINE, MARGIN, PAPER, QUIET
from vitreous.metrics.accuracy import ReliabilityBin
from vitreous.reports.chart import COLOURS, axis
from vitreous.reports.figure import (
    DPI,
    TEXT_POINTS,
    TITLE_POINTS,
    add_legend,
    as_image,
    new_figure,
    set_heading,
    shorten_label,
    style_axes,
)

MATRIX_SIDE = 1000  # pixels, roughly; with more classes, neighbours share a pixel
LARGEST_CELL, SMALLEST_NAMED, SMALLEST_NUMBERED = 64, 12, 36  # pixels of a cell
LONGEST_CLASS_NAME = 24  # letters
ABOVE, BELOW, LEFT = 80, 130, 80  # pixels around the matrix, without the names
RELIABILITY_SIZE = 720, 950  # pixels
ACCURACY_COLOUR, GAP_COLOUR = COLOURS[0], "#e8a36c"


def matrix_rows(classes: int) -> int:
    """How many rows and columns a confusion matrix has: one per class, as far as there are pixels."""
    return min(classes, MATRIX_SIDE)


def confusion_picture(counts: np.ndarray, names: Sequence[str], *, heading: str) -> Image.Image:
    """Rows are the true classes, columns the answers; the colour is the share of the row's images.

    Args:
        counts: (R, R) images, where R is `matrix_rows(len(names))`.
        names: Of the classes.
        heading: Above the matrix.
    """
    cell = max(1, min(LARGEST_CELL, MATRIX_SIDE // len(counts)))
    side, named = cell * len(counts), cell >= SMALLEST_NAMED
    labels = [shorten_label(name, LONGEST_CLASS_NAME) for name in names] if named else []
    letters = round(max(map(len, labels), default=5) * min(11, cell) if named else 50)
    width, height = max(LEFT + letters + side + MARGIN, 640), ABOVE + side + letters + BELOW
    figure = new_figure(width, height, head=ABOVE)
    figure.set_layout_engine("none")  # cells are whole pixels, so that no mistake is lost between two of them
    set_heading(figure, shorten_label(heading, width // 13), size=TITLE_POINTS)
    left, bottom = (LEFT + letters) / width, (letters + BELOW) / height
    axes = figure.add_axes((left, bottom, side / width, side / height), facecolor="none")
    axes.set(xlim=(-0.5, len(counts) - 0.5), ylim=(len(counts) - 0.5, -0.5))
    cells = _row_shares(counts).repeat(cell, 0).repeat(cell, 1)
    place = LEFT + letters, letters + BELOW
    drawn = figure.figimage(cells, *place, cmap=_colour_map(), vmin=0, vmax=1, origin="upper", zorder=-1)  # below text
    if cell >= SMALLEST_NUMBERED:
        _write_numbers(axes, counts, cell)
    _label_axes(axes, labels, len(names), min(TEXT_POINTS, 0.72 * cell * 72 / DPI) if named else TEXT_POINTS)
    _add_scale(figure, drawn, (MARGIN / width, 36 / height, 300 / width, 14 / height))
    return as_image(figure)


def _row_shares(counts: np.ndarray) -> np.ndarray:
    """The square root makes a rare mistake visible beside the diagonal; empty cells stay white."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return np.ma.masked_where(counts == 0, np.sqrt(share))


def _colour_map() -> Any:
    """From pale to dark, because paper is white."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("confusion", HEAT_COLOURS[::-1]).with_extremes(bad=PAPER)


def _write_numbers(axes: Any, counts: np.ndarray, cell: int) -> None:
    share = _row_shares(counts)
    for true, answer in zip(*np.nonzero(counts), strict=True):
        text = str(counts[true, answer])
        size = min(TEXT_POINTS, 1.5 * cell / max(len(text), 2) * 72 / DPI)
        colour = PAPER if share[true, answer] > 0.45 else INK
        axes.text(answer, true, text, ha="center", va="center", color=colour, fontsize=size)


def _label_axes(axes: Any, labels: Sequence[str], classes: int, size: float) -> None:
    """By name, or by number where there are too many names to read."""
    for spine in axes.spines.values():  # first: moving a spine makes new ticks
        spine.set_color(LINE)
        spine.set_position(("outward", 2))  # beside the outer cells, not on them
    if labels:
        axes.set_xticks(range(len(labels)), labels, rotation=90)
        axes.set_yticks(range(len(labels)), labels)
    else:
        ticks = axis([0, classes], pad=0).ticks
        rows = axes.get_ylim()[0] + 0.5
        axes.set_xticks([value / classes * rows for value, _ in ticks], [label for _, label in ticks])
        axes.set_yticks([value / classes * rows for value, _ in ticks], [label for _, label in ticks])
    axes.tick_params(length=0, labelsize=size, labelcolor=QUIET, pad=6)
    axes.set_xlabel("answer", color=INK, fontsize=TEXT_POINTS)
    axes.set_ylabel("true class", color=INK, fontsize=TEXT_POINTS)


def _add_scale(figure: Any, drawn: Any, place: tuple[float, float, float, float]) -> None:
    bar = figure.colorbar(drawn, cax=figure.add_axes(place), orientation="horizontal")
    bar.outline.set_visible(False)
    bar.set_ticks([0, 1], labels=["0 %", "100 %"])
    bar.ax.tick_params(length=0, labelsize=TEXT_POINTS - 2, labelcolor=QUIET)
    bar.ax.set_title("share of a true class's images", loc="left", color=QUIET, fontsize=TEXT_POINTS - 2, pad=4)


def reliability_picture(bins: Sequence[ReliabilityBin], *, heading: str) -> Image.Image:
    """Above, a bar per bin: the accuracy, and its gap to the mean confidence; below, how many images it holds."""
    figure = new_figure(*RELIABILITY_SIZE, head=96)
    set_heading(figure, shorten_label(heading, 56), size=TITLE_POINTS)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    for axes, title in ((upper, "accuracy"), (lower, "images")):
        style_axes(axes)
        axes.set_title(title, loc="left", color=QUIET, fontsize=TEXT_POINTS)
    for low, high, images, confidence, accuracy in bins:
        if confidence is None or accuracy is None:
            continue
        middle, width = 50 * (low + high), 100 * (high - low)
        upper.bar(middle, 100 * accuracy, 0.95 * width, color=ACCURACY_COLOUR, label="accuracy")
        # Where the accuracy is above the confidence, the gap lies on its bar.
        gap = 100 * (accuracy - confidence)
        upper.bar(middle, gap, width / 2, bottom=100 * confidence, color=GAP_COLOUR, label="gap to the mean confidence")
        lower.bar(middle, images, 0.95 * width, color=QUIET)
    upper.plot([0, 100], [0, 100], color=INK, linestyle=(0, (5, 4)), linewidth=1.2, label="perfect")
    percent = axis([0, 100], pad=0, unit="%").ticks
    upper.set_yticks([value for value, _ in percent], [label for _, label in percent])
    lower.set_xticks([value for value, _ in percent], [label for _, label in percent])
    upper.set_ylim(0, 100)
    lower.set_xlim(0, 100)
    counts = axis([0, max(bin.images for bin in bins)], pad=0).ticks[::2]
    lower.set_yticks([value for value, _ in counts], [label for _, label in counts])
    lower.set_xlabel("confidence", color=QUIET, fontsize=TEXT_POINTS)
    entries = {label: drawn for drawn, label in zip(*upper.get_legend_handles_labels(), strict=True)}
    add_legend(figure, list(entries.values()), list(entries), across=3)
    return as_image(figure)
