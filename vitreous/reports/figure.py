"""Figures of matplotlib for charts, in the colours and sizes of our other pictures.

They are made without pyplot: nothing is global, and no window or display is needed.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from vitreous.drawing.panels import INK, LINE, MARGIN, PAPER, QUIET
from vitreous.errors import printable

DPI = 100
TITLE_POINTS, TEXT_POINTS = 17.0, 13.5  # font sizes; readable when a page shows the picture at half its width


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


def shorten_label(text: str, most: int) -> str:
    """At most this many letters; matplotlib would let longer text run out of the picture."""
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def as_image(figure: Any) -> Image.Image:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # names of classes and runs may hold dollars
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # names in all scripts; a box stands for it
        canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())
