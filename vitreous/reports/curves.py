"""Charts of curves as one picture."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image

from vitreous.drawing.panels import INK, QUIET
from vitreous.reports.chart import Chart, Series
from vitreous.reports.figure import (
    TEXT_POINTS,
    TITLE_POINTS,
    add_legend,
    as_image,
    new_figure,
    set_heading,
    shorten_label,
    style_axes,
)

PANEL_WIDTH, PANEL_HEIGHT, HEADING_HEIGHT, LEGEND_ROW_HEIGHT = 752, 430, 78, 28  # pixels
LONGEST_LEGEND_NAME = 60  # letters
LETTER_WIDTH = 11  # pixels, about
FAINT_OPACITY = 0.3


class LegendEntry(NamedTuple):
    name: str
    colour: str
    dashed: bool = False


def draw_curves(
    charts: Sequence[Chart], *, heading: str, legend: Sequence[LegendEntry] = (), columns: int = 2
) -> Image.Image:
    """All charts in rows under a heading and the legend."""
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
    return as_image(figure)


def legend_columns(legend: Sequence[LegendEntry], width: int) -> int:
    """How many entries of the legend fit side by side."""
    longest = max((len(shorten_label(entry.name, LONGEST_LEGEND_NAME)) for entry in legend), default=0)
    return max(1, min(len(legend), width // (90 + LETTER_WIDTH * longest)))


def draw_chart(axes: Any, chart: Chart) -> None:
    """On the axes that the chart itself has chosen: the web page has the same."""
    style_axes(axes)
    for series in sorted(chart.series, key=lambda series: not series.faint):
        draw_series(axes, series)
    x_axis, y_axis = chart.x_axis(), chart.y_axis()
    axes.set_xlim(x_axis.low, x_axis.high)
    axes.set_ylim(y_axis.low, y_axis.high)
    axes.set_xticks([value for value, _ in x_axis.ticks], [label for _, label in x_axis.ticks])
    axes.set_yticks([value for value, _ in y_axis.ticks], [label for _, label in y_axis.ticks])
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
