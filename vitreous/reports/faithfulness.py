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
    "insertion_linear": "insertion (linear)",
    "deletion_linear": "deletion (linear)",
    "pointing": "pointing",
    "pointing_near": "pointing, 2 px",
    "energy": "energy inside",
    "overlap": "IoU",
    "randomisation": "likeness to random weights",
    "stability": "stability",
    "difference_noise": "noise hides",
    "difference_colour": "colour hides",
    "runner_up": "second class",
    "class_likeness": "likeness to second class",
}
CONSOLE_MEASURES = (DECIDES, "pointing_near")  # what fits a console of 80 columns
DOUBT_MEASURES = ("difference_noise", "difference_colour", "runner_up", "class_likeness", "randomisation")
CHART_WIDTH, ROW_HEIGHT = 1104, 40  # pixels
COLOUR_KEY = "orange: does not beat its controls; grey: control; dashed: random map and centre blob"
HOW_TO_READ = (
    "Insertion − deletion: the area between the curves of the probability as the image is shown, and hidden, in "
    "the order of the map, where hidden means blurred. In brackets the 95 % bootstrap interval over images. "
    "Over hidings: the lowest and the highest insertion − deletion with a blur, the mean colour and linear imputation "
    "(ROAD, arXiv 2202.00449); where they are far apart, the measure is as uncertain as that. "
    "Passes: forward passes a map takes, a backward one counting as two. "
    "Pointing, energy and IoU compare with the object's mask where the data have one; "
    "oracle_mask is that mask, measured on those images only. "
    "Likeness to random weights should be near 0, stability under noise near 1."
)
HOW_TO_DOUBT = (
    "Noise and colour: insertion − deletion where the image's own pixels in random order, or one of its colours, hide; "
    "a learned explainer was taught with neither. Second class: the most probable class besides the explained one, by "
    "its own map; likeness of both maps, where 1 means that the map does not know what it explains."
)


def verdict(scores: MethodScores, method: str) -> str:
    if method in scores.controls:
        return "control"
    lost = [name.replace("_", " ") for name, beaten in scores.verdict(method).items() if not beaten]
    return f"no: {', '.join(lost)}" if lost else "yes"


def faithfulness_table(
    scores: MethodScores, *, title: str, measures: Sequence[str] = CONSOLE_MEASURES, hidings: bool = False
) -> Grid:
    """One row per method, the most faithful first; the deciding measure with its interval.

    `hidings`: its range over ways to hide too, for which a console has no room.
    """
    shown = [measure for measure in measures if any(measure in found for found in scores.values.values())]
    rows = []
    for row in scores.rows():
        name = str(row["method"])
        decides, *others = (_cell(scores, name, measure) for measure in shown)
        extent = [_hidings(scores, name)] if hidings else []
        rows.append((name, _passes(scores, name), decides, *extent, *others, verdict(scores, name)))
    first, *further = (MEASURE_HEADINGS[measure] for measure in shown)
    headings = ("method", "passes", first, *(["over hidings"] if hidings else []), *further, "beats controls")
    return Grid(title, headings, rows)


def _passes(scores: MethodScores, method: str) -> str:
    return str(scores.passes.get(method, "–"))


def _hidings(scores: MethodScores, method: str) -> str:
    found = scores.hiding_range(method)
    return "–" if found is None else f"{found[0]:.2f} to {found[1]:.2f}"


def frontier_text(scores: MethodScores) -> str:
    """The best method from so many passes on, where it changes."""
    steps = scores.envelope().items()
    best = [(cost, name) for cost, name in steps if scores.passes[name] == cost]
    return ", ".join(f"{cost}: {name} {scores.interval(name).mean:.2f}" for cost, name in best)


def _cell(scores: MethodScores, method: str, measure: str) -> str:
    if measure not in scores.values[method]:
        return "–"
    found = scores.interval(method, measure)
    if measure != DECIDES:
        return f"{found.mean:.2f}"
    return f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"


def faithfulness_markdown(
    scores: MethodScores, about: dict[str, Any], *, chart: str, frontier: str, default: str
) -> str:
    grid = faithfulness_table(scores, title="", measures=tuple(MEASURE_HEADINGS), hidings=True)
    lines = [f"# How faithful are the maps of {plain(str(about['model']))}?", ""]
    lines += [f"- {name.replace('_', ' ')}: {plain(str(value))}" for name, value in about.items() if name != "model"]
    lines += ["", f"Default map: {plain(default)}", "", f"![Insertion − deletion of every method]({chart})", ""]
    lines += [f"The most faithful by passes: {plain(frontier_text(scores))}", ""]
    lines += [f"![Insertion − deletion against passes]({frontier})", ""]
    lines += [*markdown_rows(grid), "", HOW_TO_READ, ""]
    lines += [HOW_TO_DOUBT, ""] if any("class_likeness" in found for found in scores.values.values()) else []
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
