"""What `vitreous bench` has found, as tables for a terminal and for Markdown, and as charts."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from math import log
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitreous.drawing.panels import INK, QUIET
from vitreous.errors import printable
from vitreous.measurements.result import BenchResult, MeasuredGrowth, Measurement, ParetoPoint, count_rounds
from vitreous.measurements.statistics import Spread
from vitreous.reports.chart import COLOURS, axis
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

NONE = "–"
PARETO_WIDTH, PARETO_HEIGHT = 1104, 720  # pixels
GROWTH_WIDTH, GROWTH_HEIGHT = 1104, 560
SMALL_POINTS = TEXT_POINTS - 3
DOT, NAME_WIDTH, NAME_HEIGHT = 0.012, 0.0082, 0.03  # of a dot, a letter and a line, as shares of the axes
MANY_TIMES = 1000  # from the lowest to the highest value of an axis
COLUMNS = {  # heading -> what it means
    "images/s": "median over the rounds, and in brackets the range of the middle half",
    "p50 ms": "median time of a batch",
    "p95 ms": "19 of 20 batches took at most as long",
    "MB": "millions of bytes of all tensors that a pass makes, at the moment when they are most, counted; of "
    "compiled and exported models, by how much the process grew",
    "whole MB": "with the weights and, in training, the gradients and AdamW's two moments",
    "params": "",
    "MACs": "multiply-adds of one image; a training step counts three times",
    "of peak": "multiply-adds a second, as a share of those of a product of large matrices, timed in every round",
}
WIDE_TERMINAL = 130  # columns
MODEL_NAME_COLUMNS = 16  # of a terminal, that names of models have at least
WIDE_ONLY = ("whole MB", "params", "MACs", "per MAC")
TERMINAL_LEGEND = ("p95 ms", "MB", "of peak")


def spread_text(spread: Spread | None, digits: int = 2) -> str:
    if spread is None:
        return NONE
    return f"{spread.middle:.{digits}f} [{spread.low:.{digits}f}, {spread.high:.{digits}f}]"


def rate_text(spread: Spread) -> str:
    """At least three digits that count."""
    digits = 0 if spread.middle >= 100 else 1 if spread.middle >= 10 else 2 if spread.middle >= 1 else 3
    return spread_text(spread, digits)


def megabytes(count: int | None) -> str:
    return NONE if count is None else f"{count / 1e6:,.0f}" if count >= 1e7 else f"{count / 1e6:.1f}"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f}" if seconds >= 0.1 else f"{1000 * seconds:.1f}"


def measurement_cells(result: BenchResult, one: Measurement) -> dict[str, str]:
    """Heading -> figure, in the order of the table; what does not apply is left out."""
    cells: dict[str, str] = {}
    if one.seconds:
        cells |= {
            "images/s": rate_text(one.throughput),
            "p50 ms": milliseconds(one.p50),
            "p95 ms": milliseconds(one.p95),
        }
    cells |= {
        "MB": megabytes(one.activation_bytes),
        "whole MB": megabytes(one.whole_bytes),
        "params": NONE if one.params is None else f"{one.params / 1e6:.1f} M",
        "MACs": NONE if one.macs is None else f"{one.macs / 1e9:.2f} G",
    }
    if one.seconds:
        cells["of peak"] = NONE if one.peak_share is None else f"{one.peak_share.middle:.0%}"
    if result.baseline is not None and one.seconds:
        cells[f"/ {result.baseline}"] = spread_text(result.ratio(one))
        cells["per MAC"] = spread_text(result.ratio_per_mac(one))
    if one.seconds and any(m.mode != one.mode for m in result.measurements):
        cells["/ own eager"] = spread_text(result.ratio_to_eager(one))
    return cells


def measured_together(result: BenchResult) -> Iterable[tuple[str, list[Measurement]]]:
    """Measurements that were made in the same rounds, under a heading with what they carry."""
    for (setting, busy), members in groupby(result.measurements, key=lambda m: (m.setting, m.busy)):
        together = list(members)
        first = together[0]
        told = str(setting) + (", beside a competing load on all cores" if busy else "")
        if first.seconds:
            peak = first.product_macs / 1e9 / sorted(first.product_seconds)[len(first.product_seconds) // 2]
            told += f"; {count_rounds(len(first.seconds))}, matrix products {peak:.0f} GMAC/s"
        if first.load_before is not None:
            told += f", load {first.load_before:.1f} to {first.load_after:.1f}"
        yield told, together


def name_cell(result: BenchResult, one: Measurement) -> str:
    modes = {m.mode for m in result.measurements}
    return printable(one.model) + (f", {one.mode}" if len(modes) > 1 else "")


def growth_rows(growth: Sequence[MeasuredGrowth]) -> list[list[str]]:
    rows = []
    for one in growth:
        sizes = ", ".join(f"{height}x{width}" for height, width in one.sizes)
        what = f"{one.step}, batch {one.batch}{', busy' if one.busy else ''}"
        figures = [NONE if value is None else f"{value:.3f}" for value in (one.time, one.memory)]
        rows.append([printable(one.model), one.mode, what, sizes, *figures])
    return rows


GROWTH_TITLES = ("model", "run", "step", "sizes", "time", "memory")
GROWTH_MEANING = "Exponents of the number of pixels: 1 is linear, 2 quadratic."


# ---- terminal ----------------------------------------------------------------------------------------------------


def print_result(result: BenchResult) -> None:
    console = Console(highlight=False)
    for heading, members in measured_together(result):
        console.print(Text(f"\n{heading}", style="bold"))
        console.print(terminal_table(result, members, wide=console.width >= WIDE_TERMINAL))
    growth = result.growth()
    if growth:
        console.print(Text(f"\n{GROWTH_MEANING}", style="bold"))
        table = Table(box=None, header_style="bold")
        for name in GROWTH_TITLES:
            table.add_column(name, justify="right" if name in ("time", "memory") else "left", overflow="fold")
        for row in growth_rows(growth):
            table.add_row(*map(Text, row))
        console.print(table)
    shown = result.measurements[0].seconds
    legend = [f"{name}: {COLUMNS[name]}." for name in TERMINAL_LEGEND if shown or name == "MB"]
    console.print(Text("\n" + "\n".join([str(result.machine), *legend]), style="dim"))


def terminal_table(result: BenchResult, members: Sequence[Measurement], *, wide: bool) -> Table:
    """In a narrow terminal without what the table in a file has besides, so that a row is a line."""
    table = Table(box=None, header_style="bold")
    cells = [measurement_cells(result, one) for one in members]
    headings = [name for name in cells[0] if wide or name not in WIDE_ONLY]
    table.add_column("model", overflow="fold", min_width=MODEL_NAME_COLUMNS)
    for name in headings:
        # Of a folder as baseline the last part will do: a long path would leave no room for the models' own names.
        shown = f"/ {Path(result.baseline).name}" if name == f"/ {result.baseline}" and result.baseline else name
        table.add_column(shown, justify="right", no_wrap=True)
    for one, own in zip(members, cells, strict=True):
        if not wide and "images/s" in own:
            own["images/s"] = own["images/s"].partition(" [")[0]
        table.add_row(Text(name_cell(result, one)), *(Text(own[name]) for name in headings))
    return table


# ---- Markdown ----------------------------------------------------------------------------------------------------


def bench_markdown(result: BenchResult, charts: Sequence[str]) -> str:
    parts = ["# How fast is it?", f"{printable(str(result.machine))}. Task: {result.task}."]
    for heading, members in measured_together(result):
        cells = [measurement_cells(result, one) for one in members]
        rows = [[f"`{name_cell(result, one)}`", *own.values()] for one, own in zip(members, cells, strict=True)]
        parts += [f"## {heading}", markdown_table(["model", *cells[0]], rows)]
    growth = result.growth()
    if growth:
        rows = [[f"`{name}`", *rest] for name, *rest in growth_rows(growth)]
        parts += ["## Growth with the image", GROWTH_MEANING, markdown_table(GROWTH_TITLES, rows)]
    parts += [f"![{name}]({name})" for name in charts]
    meanings = [f"- {name}: {meaning}." for name, meaning in COLUMNS.items() if meaning]
    if result.baseline is not None:
        meanings.append(f"- / {result.baseline}: times as many images a second, the median of the rounds' own ratios.")
        meanings.append("- per MAC: the same for images a second times multiply-adds of an image.")
    return "\n\n".join([*parts, "\n".join(meanings)]) + "\n"


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|---" + "|---:" * (len(headings) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


# ---- charts ------------------------------------------------------------------------------------------------------


def draw_pareto(points: Sequence[ParetoPoint], *, heading: str, machine: str) -> Image.Image:
    """Published accuracy against measured images a second, on a log scale; the line joins the best."""
    figure = new_figure(PARETO_WIDTH, PARETO_HEIGHT, head=50)
    set_heading(figure, shorten_label(heading, 88), size=TITLE_POINTS)
    axes = figure.subplots()
    style_axes(axes)
    for point in points:
        colour, rate = COLOURS[0] if point.published.ours else COLOURS[1], point.images_per_second
        axes.plot([rate.low, rate.high], [point.published.top1] * 2, color=colour, linewidth=2, alpha=0.5)
        axes.plot(rate.middle, point.published.top1, marker="o", markersize=8, color=colour)
    best = frontier_of(points)
    axes.plot(
        [point.images_per_second.middle for point in best], [point.published.top1 for point in best],
        color=QUIET, linewidth=1, linestyle=(0, (5, 4)), zorder=0,
    )  # fmt: skip
    rates = [point.images_per_second.middle for point in points]
    low, high = min(rates) * 0.85, max(rates) * 1.3  # room for the last name
    up = axis([point.published.top1 for point in points], pad=0.08, unit="%")
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    set_log_ticks(axes.xaxis, low, high)
    set_ticks(axes, y=up)
    # Those that are best have their names first, for as long as there is room.
    ordered = [*best, *(point for point in points if point not in best)]
    places = [
        (log(point.images_per_second.middle / low) / log(high / low), up.share(point.published.top1))
        for point in ordered
    ]
    for point, corner in zip(ordered, name_places(places, [len(point.model) for point in ordered]), strict=True):
        if corner is not None:
            axes.text(
                *corner, shorten_label(point.model, 40), transform=axes.transAxes, color=INK, fontsize=SMALL_POINTS,
                va="center",
            )  # fmt: skip
    axes.set_title(
        "blue: ours; orange: timm's; dashes join the best", loc="left", x=0, color=QUIET, fontsize=SMALL_POINTS
    )
    axes.set_xlabel(f"images a second\n{machine_lines(machine)}", color=QUIET, fontsize=SMALL_POINTS)
    axes.set_ylabel("published top-1 on ImageNet-1k", color=QUIET, fontsize=TEXT_POINTS)
    return as_image(figure)


def name_places(points: Sequence[tuple[float, float]], letters: Sequence[int]) -> list[tuple[float, float] | None]:
    """Where the names beside points begin, as shares of the axes; None where each place is taken or outside."""
    boxes = [(x - DOT / 2, y - DOT, x + DOT / 2, y + DOT) for x, y in points]
    found: list[tuple[float, float] | None] = []
    for (x, y), count in zip(points, letters, strict=True):
        width = count * NAME_WIDTH
        for left, middle in (
            (x + DOT, y), (x + DOT, y + NAME_HEIGHT), (x + DOT, y - NAME_HEIGHT), (x - DOT - width, y),
            (x - DOT - width, y + NAME_HEIGHT), (x - DOT - width, y - NAME_HEIGHT),
        ):  # fmt: skip
            box = (left, middle - NAME_HEIGHT / 2, left + width, middle + NAME_HEIGHT / 2)
            if left >= 0 and box[2] <= 1 and not any(overlap(box, other) for other in boxes):
                boxes.append(box)
                found.append((left, middle))
                break
        else:
            found.append(None)
    return found


def overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def machine_lines(machine: str) -> str:
    """Hardware and versions, one line each."""
    return "\n".join(shorten_label(part.strip(), 130) for part in machine.split(";"))


def frontier_of(points: Sequence[ParetoPoint]) -> list[ParetoPoint]:
    """Those that no other beats in both: from the fastest to the most accurate."""
    best: list[ParetoPoint] = []
    for point in sorted(points, key=lambda p: (-p.images_per_second.middle, -p.published.top1)):
        if not best or point.published.top1 > best[-1].published.top1:
            best.append(point)
    return best


def set_log_ticks(side: Any, low: float, high: float) -> None:
    """At 1, 2 and 5 times the powers of ten, or at the powers alone where these are many."""
    factors = (1, 2, 5) if high / low < MANY_TIMES else (1,)
    ticks = [factor * 10.0**power for power in range(-6, 9) for factor in factors]
    shown = [tick for tick in ticks if low <= tick <= high]
    side.set_ticks(shown, [f"{tick:g}" for tick in shown], minor=False)
    side.set_ticks([], minor=True)


def draw_measured_growth(result: BenchResult) -> Image.Image:
    """Time and memory over the side of the image, both on log scales, one line for each model."""
    figure = new_figure(GROWTH_WIDTH, GROWTH_HEIGHT, head=50)
    set_heading(figure, "Growth with the image; exponents of the number of pixels", size=TITLE_POINTS)
    for panel, kind in zip(figure.subplots(1, 2), ("time", "memory"), strict=True):
        style_axes(panel)
        drawn = []
        for number, one in enumerate(result.growth()):
            found = one.time if kind == "time" else one.memory
            if found is None:
                continue
            members = [m for m in result.measurements if one[:5] == (m.model, m.mode, *m.setting[::2], m.busy)]
            members.sort(key=lambda m: m.setting.pixels)
            values = [1000 * m.p50 if kind == "time" else (m.activation_bytes or 0) / 1e6 for m in members]
            label = f"{shorten_label(one.model, 24)} {one.step} b{one.batch}{' busy' if one.busy else ''}: {found:.2f}"
            panel.plot(
                [m.setting.pixels**0.5 for m in members], values, color=COLOURS[number % len(COLOURS)], marker="o",
                linewidth=2.2, label=label, linestyle=(0, (4, 2)) if one.busy else "solid",
            )  # fmt: skip
            drawn += values
        panel.set_xscale("log")
        panel.set_yscale("log")
        sides = sorted({m.setting.pixels**0.5 for m in result.measurements})
        panel.set_xticks(sides, [f"{side:.0f}" for side in sides], minor=False)
        panel.set_xticks([], minor=True)
        panel.set_title("ms of a batch" if kind == "time" else "MB of activations", loc="left", color=INK)
        panel.set_xlabel("side in pixels", color=QUIET, fontsize=SMALL_POINTS)
        if drawn:
            set_log_ticks(panel.yaxis, min(drawn) * 0.8, max(drawn) * 1.25)
            panel.legend(frameon=False, fontsize=SMALL_POINTS - 1)
    figure.supxlabel(machine_lines(f"{result.machine}; {result.conditions()}"), color=QUIET, fontsize=SMALL_POINTS - 1)
    return as_image(figure)
