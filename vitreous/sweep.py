"""Search settings of a training: a queue of runs that can be interrupted, one table and one chart.

vitreous sweep sweep.yaml
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from vitreous.errors import InputError, command, printable
from vitreous.files.storage import write_json
from vitreous.registry import resolve_name
from vitreous.reports.chart import COLOURS, Chart, LegendEntry, Series
from vitreous.reports.investigation import Findings, findings_table, write_charts_and_text
from vitreous.runs.results import result_folder
from vitreous.runs.run_folder import best_validation
from vitreous.runs.trial import done_once
from vitreous.tasks.base import load_task
from vitreous.train import train
from vitreous.training.recipe import with_recipe
from vitreous.training.search import SearchRange, Sweep, read_sweep

SWEEP_JSON, SWEEP_TEXT, TRIAL_FILE, RESULT_FOLDER = "sweep.json", "sweep.md", "trial.json", "result"
ASKS = "which settings do best"
READING = (
    "Each row is a run, the best first: the figure of its best validation. Two settings whose figures differ by less "
    "than two seeds of one setting do are equally good. In rounds of successive halving those that did best go on, "
    "so that rows with fewer epochs were left behind."
)


def sweep(recipe: Path, *, out: Path | None = None, device: str = "auto", dry_run: bool = False) -> Path:
    """Search settings of `vitreous train`: every combination, at random, or by successive halving.

    The file names the model, the data, the settings that all trials share, and those that are searched:

        model: paca_b0
        data: photos
        method: halving        # or grid, random
        trials: 9
        settings: {epochs: 9, size: 64}
        search:
          lr: {low: 0.0001, high: 0.01, scale: log}
          drop_path: [0.0, 0.1, 0.2]

    Every trial is a run folder below --out. The same command again continues where it was interrupted, in the middle of
    a run too. A trial that fails is told and left out. At the end stand a table, the best first, and a chart for every
    setting, in --out/result.

    Examples:
        vitreous sweep sweep.yaml --dry-run
        vitreous sweep sweep.yaml --out runs/sweep

    Args:
        recipe: The YAML file.
        out: Folder of the runs; default: runs/NAME, for a file NAME.yaml.
        device: cpu, cuda, cuda:1, mps; auto takes the best there is.
        dry_run: List the trials, and train nothing.

    Returns:
        The folder of the best run.
    """
    asked = read_sweep(recipe)
    folder = Path("runs") / recipe.stem if out is None else out
    resolve_name(asked.model)
    points = asked.points()
    for point in points:  # what cannot be a setting is told before the work
        with_recipe(asked.model, asked.data, **{**asked.settings, **point}, out=folder)
    rounds = asked.rounds()
    print(f"{asked.method}: {len(points)} trials of {', '.join(asked.search)}")
    for number, (trials, epochs) in enumerate(rounds, 1):
        print(f"round {number}: {trials} trials, {epochs_text(epochs)} each")
    if dry_run:
        for number, point in enumerate(points):
            print(printable(f"{number:03d}  {told(point)}"))
        return folder
    rows = run_rounds(asked, points, rounds, folder, device)
    metric = main_metric(asked)
    findings = as_findings(asked, rows, metric)
    with result_folder(folder / RESULT_FOLDER, SWEEP_JSON) as staging:
        write_result(staging, asked, findings)
    Console().print(findings_table("sweep", findings))
    best = rows[0]
    options = [word for name, value in best["settings"].items() for word in (f"--{name.replace('_', '-')}", value)]
    print(printable(f"best: {told(best['point'])}, {metric} {best[metric]:.4g}, in {best['folder']}"))
    print(printable(f"again, for longer: {command('train', asked.model, asked.data, *options)}"))
    print(printable(f"written: {folder / RESULT_FOLDER / SWEEP_TEXT}, and a chart beside it"))
    return Path(best["folder"])


def main_metric(asked: Sweep) -> str:
    return load_task(str(asked.settings.get("task", "classify"))).main_metric


def told(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in point.items())


def run_rounds(
    asked: Sweep, points: list[dict[str, Any]], rounds: list[tuple[int, int]], folder: Path, device: str
) -> list[dict[str, Any]]:
    """All runs, those of the last round first, and within a round the best first."""
    left = list(enumerate(points))
    rows: list[dict[str, Any]] = []
    for trials, epochs in rounds:
        found = []
        for number, point in left[:trials]:
            row = one_trial(asked, number, point, None if len(rounds) == 1 else epochs, folder, device)
            if row is not None:
                found.append(row)
        if not found:
            raise InputError("no trial of this round came to its end; the reasons are above")
        found.sort(key=lambda row: (-row[main_metric(asked)], row["trial"]))
        left = [(row["trial"], row["point"]) for row in found]
        rows = found + rows
    return rows


def one_trial(
    asked: Sweep, number: int, point: dict[str, Any], epochs: int | None, folder: Path, device: str
) -> dict[str, Any] | None:
    """Its figures; None if it failed, which is told."""
    settings = {**asked.settings, **point, **({} if epochs is None else {"epochs": epochs})}
    run = folder / (f"{number:03d}" if epochs is None else f"{number:03d}_{epochs}_epochs")
    metric = main_metric(asked)

    def work() -> dict[str, float]:
        print(printable(f"\ntrial {number:03d}: {told(point)}"))
        train(asked.model, asked.data, **{"device": device, **settings}, out=run)
        line = best_validation(run, metric)
        if line is None:
            raise InputError(f"{run} has no validation with {metric}")
        return {metric: line[metric], "epoch": line["epoch"], "seconds": line["seconds"]}

    try:
        budget = {"model": asked.model, "data": asked.data, **settings}
        figures = done_once(run / TRIAL_FILE, budget, work, option="--out")
    except InputError as reason:
        print(printable(f"trial {number:03d} is left out: {reason}"))
        return None
    shared = {"trial": number, "folder": str(run), "point": point, "settings": settings}
    return {**shared, **point, "epochs": settings.get("epochs", asked.epochs), **figures}


def as_findings(asked: Sweep, rows: list[dict[str, Any]], metric: str) -> Findings:
    columns = ("trial", *asked.search, *(() if "epochs" in asked.search else ("epochs",)), metric, "seconds")
    lengths = sorted({row["epochs"] for row in rows})
    colours = {epochs: COLOURS[place % len(COLOURS)] for place, epochs in enumerate(reversed(lengths))}
    charts = [
        Chart(f"{metric} by {name}", axis_name(name, given), scatter(rows, name, metric, colours, is_log(given)))
        for name, given in asked.search.items()
        if all(isinstance(row[name], int | float) for row in rows)
    ]
    legend = tuple(LegendEntry(epochs_text(epochs), colour) for epochs, colour in colours.items())
    return Findings(tuple(rows), tuple(charts), legend, columns=columns)


def epochs_text(epochs: int) -> str:
    return f"{epochs} epoch{'' if epochs == 1 else 's'}"


def is_log(given: Any) -> bool:
    return isinstance(given, SearchRange) and given.log


def axis_name(name: str, given: Any) -> str:
    return f"logarithm (base 10) of {name}" if is_log(given) else name


def scatter(
    rows: list[dict[str, Any]], name: str, metric: str, colours: dict[int, str], log: bool
) -> tuple[Series, ...]:
    """Points without lines, of a colour for each number of epochs: a gap stands between two of them."""
    series = []
    for epochs, colour in reversed(colours.items()):  # the last round is drawn over the others
        places = [
            (math.log10(row[name]) if log else float(row[name]), row[metric]) for row in rows if row["epochs"] == epochs
        ]
        points = tuple(point for place in sorted(places) for point in (place, (place[0], math.nan)))
        series.append(Series(epochs_text(epochs), points, colour, epochs_text(epochs)))
    return tuple(series)


def write_result(staging: Path, asked: Sweep, findings: Findings) -> None:
    files = write_charts_and_text(staging, SWEEP_TEXT, "sweep", ASKS, READING, findings)
    about = {"model": asked.model, "data": asked.data, "method": asked.method, "seed": asked.seed}
    rows = [{key: value for key, value in row.items() if key != "point"} for row in findings.rows]
    write_json(staging / SWEEP_JSON, {**about, "rows": rows, "files": files})
