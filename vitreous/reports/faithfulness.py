"""Faithfulness of methods as a table, as Markdown, and as a picture of means with their intervals."""

from collections.abc import Sequence
from typing import Any

from PIL import Image

from vitreous.drawing.panels import INK, QUIET
from vitreous.faithfulness.scoring import DECIDES, IGNORANT, MethodScores
from vitreous.reports.chart import COLOURS, axis
from vitreous.reports.evaluation import Grid, markdown_rows, plain
from vitreous.reports.figure import (
    TEXT_POINTS,
    TITLE_POINTS,
    as_image,
    new_figure,
    set_heading,
    set_ticks,
    shorten_label,
    style_axes,
)

MEASURE_HEADINGS = {  # measure -> column
    DECIDES: "insertion − deletion",
    "insertion_blur": "insertion (blur)",
    "deletion_blur": "deletion (blur)",
    "insertion_mean": "insertion (mean)",
    "deletion_mean": "deletion (mean)",
    "pointing": "pointing",
    "pointing_near": "pointing, 2 px",
    "energy": "energy inside",
    "overlap": "IoU",
    "randomisation": "likeness to random weights",
    "stability": "stability",
}
CONSOLE_MEASURES = (DECIDES, "pointing_near", "stability")  # what fits a console of 80 columns
CHART_WIDTH, ROW_HEIGHT = 1104, 40  # pixels
COLOUR_KEY = "orange: does not beat its controls; grey: control; dashed: random map and centre blob"
HOW_TO_READ = (
    "Insertion − deletion: the area between the curves of the probability as the image is shown, and hidden, in "
    "the order of the map, where hidden means blurred. In brackets the 95 % bootstrap "
    "interval over images. Pointing, energy and IoU compare with the object's mask where the data have one; "
    "oracle_mask is that mask, measured on those images only. "
    "Likeness to random weights should be near 0, stability under noise near 1."
)


def verdict(scores: MethodScores, method: str) -> str:
    if method in scores.controls:
        return "control"
    lost = [name.replace("_", " ") for name, beaten in scores.verdict(method).items() if not beaten]
    return f"no: {', '.join(lost)}" if lost else "yes"


def faithfulness_table(scores: MethodScores, *, title: str, measures: Sequence[str] = CONSOLE_MEASURES) -> Grid:
    """One row per method, the most faithful first; the deciding measure with its interval."""
    shown = [measure for measure in measures if any(measure in found for found in scores.values.values())]
    rows = []
    for row in scores.rows():
        name = str(row["method"])
        cells = [_cell(scores, name, measure) for measure in shown]
        rows.append((name, *cells, verdict(scores, name)))
    return Grid(title, ("method", *(MEASURE_HEADINGS[measure] for measure in shown), "beats controls"), rows)


def _cell(scores: MethodScores, method: str, measure: str) -> str:
    if measure not in scores.values[method]:
        return "–"
    found = scores.interval(method, measure)
    if measure != DECIDES:
        return f"{found.mean:.2f}"
    return f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"


def faithfulness_markdown(scores: MethodScores, about: dict[str, Any], *, chart: str, default: str) -> str:
    grid = faithfulness_table(scores, title="", measures=tuple(MEASURE_HEADINGS))
    lines = [f"# How faithful are the maps of {plain(str(about['model']))}?", ""]
    lines += [f"- {name.replace('_', ' ')}: {plain(str(value))}" for name, value in about.items() if name != "model"]
    lines += ["", f"Default map: {plain(default)}", "", f"![Insertion − deletion of every method]({chart})", ""]
    lines += [*markdown_rows(grid), "", HOW_TO_READ, ""]
    described = [f"- {plain(str(row['method']))}: {plain(str(row['summary']))}" for row in scores.rows()]
    return "\n".join([*lines, "What each method shows:", "", *described]) + "\n"


def draw_faithfulness(scores: MethodScores, *, heading: str, default: str | None = None) -> Image.Image:
    """One row per method: the mean of insertion − deletion and its interval; dashed, the means of ignorant controls."""
    names = [str(row["method"]) for row in scores.rows()]
    found = {name: scores.interval(name) for name in names}
    figure = new_figure(CHART_WIDTH, 170 + ROW_HEIGHT * len(names), head=50)
    set_heading(figure, shorten_label(heading, 88), size=TITLE_POINTS)
    axes = figure.subplots()
    style_axes(axes, grid="x")
    axes.axvline(0, color=QUIET, linewidth=1)
    for name in IGNORANT:
        if name in found:
            axes.axvline(found[name].mean, color=QUIET, linewidth=1, linestyle=(0, (5, 4)))
    for row, name in enumerate(names):
        colour, here = _colour(scores, name), found[name]
        axes.plot([here.low, here.high], [row, row], color=colour, linewidth=3, solid_capstyle="butt")
        axes.plot(here.mean, row, color=colour, marker="o", markersize=10)
    across = axis([0.0, *(end for one in found.values() for end in one)], pad=0.03)
    set_ticks(axes, x=across)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), [f"{name} (default)" if name == default else name for name in names])
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        label.set_color(QUIET if name in scores.controls else INK)
    axes.set_title(COLOUR_KEY, loc="left", x=0, color=QUIET, fontsize=TEXT_POINTS - 2)
    axes.set_xlabel("insertion minus deletion, mean and 95 % interval", color=QUIET, fontsize=TEXT_POINTS)
    return as_image(figure)


def _colour(scores: MethodScores, method: str) -> str:
    if method in scores.controls:
        return QUIET
    return COLOURS[0] if scores.beats_controls(method) else COLOURS[1]
