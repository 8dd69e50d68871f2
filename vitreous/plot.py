"""`vitreous plot`: the curves of training runs, as a picture and as a web page.

vitreous plot runs/demo
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vitreous.drawing.panels import QUIET
from vitreous.errors import InputError, nearest, printable
from vitreous.files.storage import write_json
from vitreous.files.writing import write_text
from vitreous.reports.chart import COLOURS, Chart, CurvePoint, LegendEntry, Series, short_number, thin
from vitreous.reports.curves_page import render_curves
from vitreous.reports.figure import draw_curves
from vitreous.runs.results import result_folder
from vitreous.runs.run_folder import METRICS, RUN, read_metrics

PLOT_JSON, CURVES_PNG, CURVES_HTML = "plot.json", "curves.png", "curves.html"

XAxis = Literal["epoch", "step", "time"]
POSITIONS = {"step", "epoch", "seconds"}  # when a line was written; every other number is a curve
CURVE_TITLES = {  # in the order of the charts; other curves keep their names and come before LAST
    "loss": "Loss",
    "top1": "Top-1 accuracy",
    "top5": "Top-5 accuracy",
    "lr": "Learning rate",
    "images_per_second": "Images per second",
}
LAST = ("lr", "images_per_second")
PERCENT = {"top1", "top5"}
SPLIT_NAMES = {"train": "training", "val": "validation"}
NEIGHBOURS = 25  # training lines that decide how many steps one of them should stand for


class Run(NamedTuple):
    name: str
    lines: list[dict[str, Any]]  # of its metrics.jsonl, made comparable


def plot(
    runs: tuple[str, ...],
    *,
    out: Path = Path("plot"),
    x: XAxis = "epoch",
    smooth: float = 0.0,
    metrics: tuple[str, ...] = (),
) -> Path:
    """Draw the curves of one or several training runs: loss, metrics, learning rate, speed.

    Unfinished runs are drawn as far as they have come. Every point of a training curve is a mean over about as many
    steps: lines of metrics.jsonl that stand for a few batches only are joined to their neighbours. Written to --out:
    curves.html (one file, opens anywhere, needs no network; point at a curve to read it), curves.png, and plot.json
    with the last, lowest and highest values. An earlier plot there is replaced; any other content is left alone and
    refused.

    Examples:
        vitreous plot runs/demo
        vitreous plot runs/small runs/large --x time --smooth 0.8 --out comparison
        vitreous plot runs/* --metrics loss top1

    Args:
        runs: Run folders.
        out: Folder to write to.
        x: What runs along the horizontal axis; time is spent training, without pauses between two starts.
        smooth: From 0 (off) to below 1: how much of the past a moving average of noisy training curves keeps.
        metrics: Which curves to draw; default: all.

    Returns:
        The path of the web page.
    """
    if not 0 <= smooth < 1:
        raise InputError(f"--smooth {smooth} cannot be used; give 0 (off) or more and less than 1, e.g. 0.8")
    histories = read_runs(runs)
    chosen = choose_metrics(histories, metrics)
    scale, label = x_scale(histories, x)
    charts = [build_chart(metric, histories, x, scale, label, smooth) for metric in chosen]
    title = histories[0].name if len(histories) == 1 else f"{len(histories)} runs"
    legend = [LegendEntry(run.name, run_colour(index)) for index, run in enumerate(histories)]
    kinds = [LegendEntry("training", QUIET), LegendEntry("validation", QUIET, dashed=True)]
    with result_folder(out, PLOT_JSON) as folder:
        draw_curves(charts, heading=title, legend=[*legend, *kinds]).save(folder / CURVES_PNG)
        write_text(folder / CURVES_HTML, render_curves(charts, title=title, legend=legend, note=legend_note(smooth)))
        content = {"runs": list(runs), "curves": extremes(charts), "files": [CURVES_PNG, CURVES_HTML]}
        write_json(folder / PLOT_JSON, content)
    for run in histories:
        print(printable(run_summary(run), keep="\n"))
    print(printable(f"\n{out / CURVES_PNG}\n{out / CURVES_HTML}", keep="\n"))
    return out / CURVES_HTML


def read_runs(paths: Sequence[str]) -> list[Run]:
    if not paths:
        raise InputError("no run given; give one or several run folders, e.g. vitreous plot runs/demo")
    paths = list(dict.fromkeys(paths))
    short = [Path(path).resolve().name for path in paths]
    names = short if len(set(short)) == len(short) else paths  # short, unless two would be the same
    runs = [Run(name, run_lines(Path(path).expanduser())) for name, path in zip(names, paths, strict=True)]
    young = [run.name for run in runs if not run.lines]
    if len(young) == len(runs):
        raise InputError(f"run '{young[0]}' has logged nothing yet; the first line comes after --log-every steps")
    if young:
        print(printable(f"left out, as nothing is logged yet: {', '.join(young)}"))
    if len(runs) - len(young) > len(COLOURS):
        print(f"{len(runs) - len(young)} runs share {len(COLOURS)} colours; in the page each can be hidden")
    return [run for run in runs if run.lines]


def run_lines(path: Path) -> list[dict[str, Any]]:
    if not (path / METRICS).is_file() and not (path / RUN).is_file():
        below = sorted(file.parent.as_posix() for file in path.glob(f"*/{METRICS}"))
        there = f"; runs below it: {' '.join(below[:8])}" if below else ""
        problem = "no run folder (it holds neither run.json nor metrics.jsonl)" if path.is_dir() else "no folder"
        raise InputError(f"'{path}' is {problem}{there}; give run folders, as vitreous train makes them")
    return even_lines([line for line in read_metrics(path) if isinstance(line, dict) and is_number(line.get("step"))])


def even_lines(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines, with training lines joined until each stands for about as many steps as the long ones around it.

    A training line is the mean since the one before, and every epoch ends with one: with 49 steps an epoch and a line
    every 50, means of an epoch and single batches take turns, and a curve through both has spikes that never happened.
    """
    places = [place for place, line in enumerate(lines) if is_training(line)]
    ends = [lines[place]["step"] for place in places]
    starts = [0, *ends[:-1]]
    spans = [end - start for start, end in zip(starts, ends, strict=False)]
    groups: list[list[int]] = [[]]  # indices into the training lines, of those that become one
    usual = usual_spans(spans)
    for index in range(len(spans)):
        groups[-1].append(index)
        if ends[index] - starts[groups[-1][0]] >= usual[index]:
            groups.append([])
    rest = groups.pop()
    if rest and groups and ends[-1] - starts[rest[0]] < usual[-1] / 2:
        groups[-1] += rest
    elif rest:
        groups.append(rest)
    made = {places[group[-1]]: joined([(spans[each], lines[places[each]]) for each in group]) for group in groups}
    return [made.get(place, line) for place, line in enumerate(lines) if place in made or not is_training(line)]


def usual_spans(spans: Sequence[int]) -> list[int]:
    """For each line, how many steps a neighbouring line stands for that no end of an epoch cut short.

    Not the maximum: a line after lost ones is long and must not decide for the others. And only of the neighbourhood,
    as a run may be continued with another --log-every.
    """
    found = []
    for index in range(len(spans)):
        first = max(0, min(index - NEIGHBOURS // 2, len(spans) - NEIGHBOURS))
        near = sorted(spans[first : first + NEIGHBOURS])
        found.append(near[int(0.9 * len(near))])
    return found


def joined(parts: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """Training lines, each with the steps it stands for, as one line: where the last one was, with means over all."""
    last = parts[-1][1]
    if len(parts) == 1:
        return last
    means = {}
    for name in {key for _, line in parts for key in line} - POSITIONS - {"split", "lr"}:
        known = [(steps, line[name]) for steps, line in parts if is_number(line.get(name)) and steps > 0]
        total = sum(steps for steps, _ in known)
        if (
            known and name == "images_per_second" and all(value > 0 for _, value in known)
        ):  # a mean over time, not over steps
            means[name] = total / sum(steps / value for steps, value in known)
        elif known:
            means[name] = sum(steps * value for steps, value in known) / total
    return last | means


def is_training(line: dict[str, Any]) -> bool:
    return line.get("split", "train") == "train"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def choose_metrics(runs: Sequence[Run], wanted: Sequence[str]) -> list[str]:
    """The curves that at least one run has, the most important first."""
    found = {key for run in runs for line in run.lines for key, value in line.items() if is_number(value)} - POSITIONS
    for name in wanted:
        if name not in found:
            raise InputError(f"no run has a curve '{name}'; nearest: {nearest(name, sorted(found))}")
    if wanted:
        return list(dict.fromkeys(wanted))
    first = [name for name in CURVE_TITLES if name not in LAST]
    between = sorted(found - {*CURVE_TITLES})
    return [name for name in [*first, *between, *LAST] if name in found]


def x_scale(runs: Sequence[Run], x: XAxis) -> tuple[float, str]:
    """The divisor of times, so that the axis has readable numbers, and the label of the axis."""
    if x != "time":
        return 1.0, x
    for run in runs:
        if not any("seconds" in line for line in run.lines):
            raise InputError(f"run '{run.name}' has not logged its time; use --x epoch or --x step")
    longest = max(line.get("seconds", 0.0) for run in runs for line in run.lines)
    units = ((1.0, "seconds", 120), (60.0, "minutes", 7200), (3600.0, "hours", math.inf))
    return next((scale, name) for scale, name, most in units if longest <= most)


def build_chart(metric: str, runs: Sequence[Run], x: XAxis, scale: float, label: str, smooth: float) -> Chart:
    """The chart of one metric: training and validation of every run that has it."""
    unit = "%" if metric in PERCENT else ""
    series = []
    for index, run in enumerate(runs):
        for split, kind in SPLIT_NAMES.items():
            points = points_of(run, metric, split, x, scale, 100.0 if unit else 1.0)
            if not points:
                continue
            name = kind if len(runs) == 1 else f"{run.name}, {kind}"
            make = partial(Series, name, colour=run_colour(index), group=run.name, dashed=split == "val")
            if smooth and split == "train" and metric != "lr":
                series.append(make(tuple(thin(points)), faint=True))
                points = smoothed(points, smooth)
            series.append(make(tuple(thin(points))))
    return Chart(CURVE_TITLES.get(metric, metric), label, tuple(series), unit)


def points_of(run: Run, metric: str, split: str, x: XAxis, scale: float, factor: float) -> list[CurvePoint]:
    # A line has its step, but not its step within the epoch. The last step of an epoch divided by the epoch's number is
    # the length of an epoch; any other step gives less.
    steps = max(line["step"] / max(line.get("epoch", 1), 1) for line in run.lines) or 1
    points = []
    for line in run.lines:
        place = {"step": line["step"], "epoch": line["step"] / steps, "time": line.get("seconds", math.nan) / scale}[x]
        if line.get("split", "train") == split and is_number(line.get(metric)) and math.isfinite(place):
            points.append((place, factor * line[metric]))
    return points


def smoothed(points: Sequence[CurvePoint], keep: float) -> list[CurvePoint]:
    """Exponential moving average without a bias towards zero at the start; gaps stay and do not count."""
    result, total, weight = [], 0.0, 0.0
    for x, y in points:
        if math.isfinite(y):
            total, weight = keep * total + y, keep * weight + 1
        result.append((x, total / weight if math.isfinite(y) else y))
    return result


def run_colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def legend_note(smooth: float) -> str:
    kinds = "Solid lines: training; dashed lines: validation."
    return kinds if not smooth else f"{kinds} Training curves are smoothed ({smooth:g}); the faint ones behind are not."


def extremes(charts: Sequence[Chart]) -> list[dict[str, Any]]:
    """Last, lowest and highest value of every curve, as it was measured."""
    rows = []
    for chart in charts:
        # With smoothing, the raw curve is the faint one.
        raw = {(s.group, s.dashed): s for s in reversed(chart.series) if s.points}
        for (group, dashed), series in sorted(raw.items()):
            values = [y for _, y in series.points if math.isfinite(y)]
            figures = {"last": values[-1], "lowest": min(values), "highest": max(values)} if values else {}
            rows.append({"run": group, "chart": chart.title, "split": "val" if dashed else "train", **figures})
    return rows


def run_summary(run: Run) -> str:
    """One line: how far the run has come, and its latest figures."""
    last = run.lines[-1]
    figures: dict[str, Any] = {}
    for split, kind in SPLIT_NAMES.items():
        lines = [line for line in run.lines if line.get("split", "train") == split]
        newest = lines[-1] if lines else {}
        figures |= {f"{kind} {name}": value for name, value in newest.items() if name in ("loss", "top1")}
    text = ", ".join(f"{name} {short_number(value)}" for name, value in figures.items() if is_number(value))
    return f"{run.name}: step {last['step']}, epoch {last.get('epoch', '?')}: {text}"
