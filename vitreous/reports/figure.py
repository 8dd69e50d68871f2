"""Charts as pictures, in the colours and sizes of our other pictures: curves; a confusion matrix, with readable cells
for few classes and as a heat map for many; and a reliability diagram, which shows how often answers of a given
confidence were right.

They are figures of matplotlib, made without pyplot: nothing is global, and no window or display is needed.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image

from vitreous.drawing.panels import HEAT_COLOURS, INK, LINE, MARGIN, PAPER, QUIET
from vitreous.errors import printable
from vitreous.metrics.accuracy import ReliabilityBin
from vitreous.reports.chart import COLOURS, Axis, Chart, LegendEntry, Series, axis

DPI = 100
TITLE_POINTS, TEXT_POINTS = 17.0, 13.5  # font sizes; readable when a page shows the picture at half its width
PANEL_WIDTH, PANEL_HEIGHT, HEADING_HEIGHT, LEGEND_ROW_HEIGHT = 752, 430, 78, 28  # pixels
LONGEST_LEGEND_NAME = 60  # letters
LETTER_WIDTH = 11  # pixels, about
FAINT_OPACITY = 0.3
MATRIX_SIDE = 1000  # pixels, roughly; with more classes, neighbours share a pixel
LARGEST_CELL, SMALLEST_NAMED, SMALLEST_NUMBERED = 64, 12, 36  # pixels of a cell
LONGEST_CLASS_NAME = 24  # letters
ABOVE, BELOW, LEFT = 80, 130, 80  # pixels around the matrix, without the names
RELIABILITY_SIZE = 720, 950  # pixels
ACCURACY_COLOUR, GAP_COLOUR = COLOURS[0], "#e8a36c"


def new_figure(width: int, height: int, *, head: int) -> Any:
    """An empty figure of this size in pixels; its top `head` pixels are for the heading and a legend."""
    from matplotlib.figure import Figure  # takes half a second, and most commands draw no chart
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    below = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - head / height), w_pad=0.15, h_pad=0.12, wspace=0.04, hspace=0.05)
    return Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor=PAPER, layout=below)


def set_heading(figure: Any, heading: str, *, size: float = TITLE_POINTS + 2) -> None:
    """At the left, above everything."""
    figure.text(*from_top_left(figure, MARGIN, 18), heading, va="top", color=INK, fontsize=size)


def add_legend(figure: Any, lines: Sequence[Any], names: Sequence[str], *, across: int) -> None:
    """Below the heading, with `across` entries side by side."""
    figure.legend(
        lines,
        names,
        loc="upper left",
        bbox_to_anchor=from_top_left(figure, MARGIN - 8, 54),
        ncols=across,
        frameon=False,
        borderpad=0,
        fontsize=TEXT_POINTS,
        labelcolor=INK,
        columnspacing=2,
    )


def from_top_left(figure: Any, right: int, down: int) -> tuple[float, float]:
    """A place this many pixels from the corner, as matplotlib counts: in shares, from the bottom."""
    width, height = figure.get_size_inches() * DPI
    return right / width, 1 - down / height


def style_axes(axes: Any, *, grid: str | None = "y") -> None:
    """Labels in grey, a line below, thin lines at the ticks of one axis, and nothing else."""
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(QUIET)
    axes.tick_params(length=0, labelsize=TEXT_POINTS, labelcolor=QUIET, pad=7)
    axes.set_axisbelow(True)
    if grid is not None:
        axes.grid(axis=grid, color=LINE)


def set_ticks(axes: Any, *, x: Axis | None = None, y: Axis | None = None) -> None:
    """And with them the ends of each axis."""
    for name, given in (("x", x), ("y", y)):
        if given is not None:
            places, labels = zip(*given.ticks, strict=True)
            axes.set(**{f"{name}lim": (given.low, given.high), f"{name}ticks": places, f"{name}ticklabels": labels})


def shorten_label(text: str, most: int) -> str:
    """At most this many letters; matplotlib would let longer text run out of the picture."""
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def as_image(figure: Any) -> Image.Image:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    with plain_text(figure):
        canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


def as_svg(figure: Any) -> str:
    """A vector graphic, the same whenever it is drawn."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    written = io.StringIO()
    with plain_text(figure), rc_context({"svg.hashsalt": "vitreous"}):
        FigureCanvasSVG(figure).print_svg(written, metadata={"Date": None})
    return written.getvalue()


@contextmanager
def plain_text(figure: Any) -> Iterator[None]:
    """Names of classes and runs may hold dollars, and be in any script; a box stands for an unknown letter."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def draw_curves(
    charts: Sequence[Chart], *, heading: str, legend: Sequence[LegendEntry] = (), columns: int = 2
) -> Image.Image:
    """All charts in rows under a heading and the legend."""
    return as_image(curves_figure(charts, heading=heading, legend=legend, columns=columns))


def curves_figure(
    charts: Sequence[Chart], *, heading: str, legend: Sequence[LegendEntry] = (), columns: int = 2
) -> Any:
    """The same before it becomes pixels, or the shapes of a vector graphic."""
    columns = min(columns, len(charts))
    rows, width = -(-len(charts) // columns), columns * PANEL_WIDTH
    across = legend_columns(legend, width)
    head = HEADING_HEIGHT + LEGEND_ROW_HEIGHT * -(-len(legend) // across)
    figure = new_figure(width, head + rows * PANEL_HEIGHT, head=head)
    set_heading(figure, shorten_label(heading, width // 16))
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, chart in zip(axes, charts, strict=False):
        draw_chart(panel, chart)
    for panel in axes[len(charts) :]:
        panel.set_visible(False)
    if legend:
        draw_legend(figure, legend, across)
    return figure


def legend_columns(legend: Sequence[LegendEntry], width: int) -> int:
    """How many entries of the legend fit side by side."""
    longest = max((len(shorten_label(entry.name, LONGEST_LEGEND_NAME)) for entry in legend), default=0)
    return max(1, min(len(legend), width // (90 + LETTER_WIDTH * longest)))


def draw_chart(axes: Any, chart: Chart) -> None:
    """On the axes that the chart itself has chosen: the web page has the same."""
    style_axes(axes)
    for series in sorted(chart.series, key=lambda series: not series.faint):
        draw_series(axes, series)
    set_ticks(axes, x=chart.x_axis(), y=chart.y_axis())
    axes.set_xlabel(chart.x_label, color=QUIET, fontsize=TEXT_POINTS)
    axes.set_title(shorten_label(chart.title, 48), loc="left", color=INK, fontsize=TITLE_POINTS, pad=14)


def draw_series(axes: Any, series: Series) -> None:
    dash = (0, (4, 2)) if series.dashed else "solid"
    alpha = FAINT_OPACITY if series.faint else 1.0
    # Dots and thick lines may reach over the border of the plot.
    common = dict(color=series.colour, alpha=alpha, clip_on=False)
    for piece in series.pieces():
        axes.plot(*zip(*piece, strict=True), linestyle=dash, linewidth=2.2, **common)
    dots = series.dots()
    if dots:
        axes.plot(*zip(*dots, strict=True), linestyle="none", marker="o", markersize=7.5, **common)


def draw_legend(figure: Any, legend: Sequence[LegendEntry], across: int) -> None:
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=entry.colour, linewidth=2.2, linestyle=(0, (4, 2)) if entry.dashed else "solid")
        for entry in legend
    ]
    add_legend(figure, lines, [shorten_label(entry.name, LONGEST_LEGEND_NAME) for entry in legend], across=across)


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
        values, numbers = zip(*axis([0, classes], pad=0).ticks, strict=True)
        places = np.array(values) / classes * (axes.get_ylim()[0] + 0.5)  # rows may be fewer than classes
        axes.set_xticks(places, numbers)
        axes.set_yticks(places, numbers)
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
    percent = axis([0, 100], pad=0, unit="%")
    set_ticks(upper, y=percent)
    set_ticks(lower, x=percent)
    lower.set_yticks(*zip(*axis([0, max(bin.images for bin in bins)], pad=0).ticks[::2], strict=True))
    lower.set_xlabel("confidence", color=QUIET, fontsize=TEXT_POINTS)
    entries = {label: drawn for drawn, label in zip(*upper.get_legend_handles_labels(), strict=True)}
    add_legend(figure, list(entries.values()), list(entries), across=3)
    return as_image(figure)
