"""The frontier: how faithful a map can be for how many passes, as a picture."""

from collections.abc import Sequence
from typing import Any

from PIL import Image

from vitreous.drawing.panels import INK, QUIET
from vitreous.faithfulness.scoring import IGNORANT, MethodScores
from vitreous.reports.chart import COLOURS, axis
from vitreous.reports.figure import (
    TEXT_POINTS,
    TITLE_POINTS,
    as_image,
    new_figure,
    set_heading,
    shorten_label,
    style_axes,
)

FRONTIER_WIDTH, FRONTIER_HEIGHT = 1104, 640  # pixels
PASS_TICKS = (1, 3, 10, 30, 100, 300, 1000)
LINE_GAP = 0.045  # between two labels, in heights of the axes
FRONTIER_KEY = "line and names: the best for so many passes; bars: 95 % intervals; orange: does not beat its controls"


def draw_frontier(scores: MethodScores, *, heading: str, also: Sequence[str] = ()) -> Image.Image:
    """Insertion − deletion of every method against the passes of a map, on a log scale; the controls are lines.

    `also` are named though they are not the best for their passes.
    """
    found = {name: scores.interval(name) for name in scores.values if name not in scores.controls}
    lines = {name: scores.interval(name).mean for name in IGNORANT if name in scores.values}
    best = [name for cost, name in scores.envelope().items() if scores.passes[name] == cost]
    figure = new_figure(FRONTIER_WIDTH, FRONTIER_HEIGHT, head=50)
    set_heading(figure, shorten_label(heading, 88), size=TITLE_POINTS)
    axes = figure.subplots()
    style_axes(axes, grid="y")
    for mean in lines.values():
        axes.axhline(mean, color=QUIET, linewidth=1, linestyle=(0, (5, 4)))
    for name, here in found.items():
        first, passes = name in best, max(1, scores.passes[name])
        colour = COLOURS[0] if scores.beats_controls(name) else COLOURS[1]
        strength: dict[str, Any] = {"color": colour, "alpha": 1.0 if first else 0.35}
        axes.plot([passes, passes], [here.low, here.high], linewidth=3 if first else 2, **strength)
        axes.plot(passes, here.mean, marker="o", markersize=9 if first else 6, **strength)
    for name in also:
        axes.text(
            scores.passes[name], found[name].mean, f"  {name}", color=QUIET, fontsize=TEXT_POINTS - 3, va="center"
        )
    most = 3 * max(PASS_TICKS[2], *(scores.passes[name] for name in found))  # room for the last name
    ends = [*(max(1, scores.passes[name]) for name in best), most]
    heights = [found[name].mean for name in best]
    axes.step(ends, [*heights, heights[-1]], where="post", color=COLOURS[0], linewidth=1.5, alpha=0.6)
    values = [0.0, *lines.values(), *(end for one in found.values() for end in one)]
    room = LINE_GAP * (len(best) + 1)  # for the names, above all bars
    up = axis([*values, max(values) + room / (1 - room) * (max(values) - min(values))], pad=0.03)
    axes.set_xscale("log")
    axes.set_xlim(0.8, most)
    axes.set_ylim(up.low, up.high)
    axes.set_yticks([value for value, _ in up.ticks], [label for _, label in up.ticks])
    axes.set_xticks(
        [tick for tick in PASS_TICKS if tick <= most], [str(t) for t in PASS_TICKS if t <= most], minor=False
    )
    axes.set_xticks([], minor=True)
    beside = spread_labels([up.share(value) for value in lines.values()])
    for (name, _), height in zip(lines.items(), beside, strict=True):
        axes.text(
            1.005, height, name.replace("_", " "), transform=axes.transAxes, color=QUIET, fontsize=TEXT_POINTS - 3,
            va="center", clip_on=False,
        )  # fmt: skip
    name_best(axes, best, {name: (max(1, scores.passes[name]), up.share(found[name].high)) for name in best})
    axes.set_title(FRONTIER_KEY, loc="left", x=0, color=QUIET, fontsize=TEXT_POINTS - 2)
    axes.set_xlabel("forward passes a map takes (backward counts as two)", color=QUIET, fontsize=TEXT_POINTS)
    axes.set_ylabel("insertion minus deletion", color=QUIET, fontsize=TEXT_POINTS)
    return as_image(figure)


def name_best(axes: Any, names: list[str], places: dict[str, tuple[int, float]]) -> None:
    """Names above their bars, one level each from left to right, so that no two can meet; thin lines lead to them."""
    top = max((height for _, height in places.values()), default=0.0)
    for level, name in enumerate(names):
        passes, height = places[name]
        lifted = top + LINE_GAP * (0.6 + len(names) - 1 - level)
        axes.plot(
            [passes, passes], [height, lifted], transform=axes.get_xaxis_transform(), color=QUIET, linewidth=0.6,
            clip_on=False, alpha=0.6,
        )  # fmt: skip
        axes.text(
            passes, lifted, f" {name}", transform=axes.get_xaxis_transform(), color=INK, fontsize=TEXT_POINTS - 3,
            va="center", clip_on=False,
        )  # fmt: skip


def spread_labels(heights: list[float], gap: float = LINE_GAP) -> list[float]:
    """The heights, moved up where two would be nearer than the gap."""
    placed: dict[int, float] = {}
    last = -1.0
    for index in sorted(range(len(heights)), key=lambda i: heights[i]):
        last = max(heights[index], last + gap)
        placed[index] = last
    return [placed[index] for index in range(len(heights))]
