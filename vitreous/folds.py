"""Train a model once for each fold of data without splits, and tell how much its figure varies.

vitreous folds paca_b0 photos
"""

import statistics
from pathlib import Path
from typing import Any

from rich.console import Console

from vitreous.data.source import open_data, own_splits, recognise
from vitreous.errors import InputError, printable
from vitreous.files.storage import write_json
from vitreous.metrics.figures import figure_text
from vitreous.registry import resolve_name
from vitreous.reports.evaluation import Grid, console_table
from vitreous.runs.results import result_folder
from vitreous.runs.run_folder import best_validation
from vitreous.runs.trial import done_once
from vitreous.tasks.base import load_task
from vitreous.train import train
from vitreous.training.folding import write_folds
from vitreous.training.recipe import with_recipe

FOLD_FILE, RESULT_JSON = "fold.json", "result.json"
TASK = "classify"


def folds(
    model: str,
    data: str,
    *,
    folds: int = 5,
    recipe: str | None = None,
    epochs: int | None = None,
    size: int | None = None,
    seed: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    out: Path | None = None,
) -> dict[str, float]:
    """Cross-validation: train a classifier once for each fold, and give the mean and the spread of its figure.

    For data without splits, in folders by class. Each picture is held out once; copies of a file stay on one side.
    Every fold is a run folder below --out, and a data set of its own in --out/data, with train and val, so that other
    verbs can be asked about it. The same command again continues where it was interrupted. `vitreous train MODEL DATA
    --folds 5` is the same.

    Examples:
        vitreous folds paca_b0 photos --epochs 30
        vitreous folds resnet18 photos --folds 10 --recipe finetune --out runs/resnet
        vitreous evaluate runs/resnet/fold_3 runs/resnet/data/fold_3

    Args:
        model: Model name (see: vitreous info).
        data: A folder with <class>/…, without train and val.
        folds: Into how many parts the data are divided.
        recipe: Settings of the training, by name or as a YAML file; other settings than those below go there.
        epochs: Passes over the training pictures.
        size: Height and width of the images in pixels.
        seed: Of everything that is drawn at random.
        workers: Processes that prepare images.
        device: cpu, cuda, cuda:1, mps; auto takes the best there is.
        out: Folder of the runs; default: runs/MODEL_folds.

    Returns:
        Mean, standard deviation, lowest and highest of the folds' best validation.
    """
    if folds < 2:
        raise InputError(f"--folds {folds} cannot be used; give 2 or more")
    given = {"recipe": recipe, "epochs": epochs, "size": size, "seed": seed, "workers": workers}
    settings = {name: value for name, value in given.items() if value is not None}
    folder = Path("runs") / f"{model}_folds" if out is None else out
    resolve_name(model)
    task = with_recipe(model, data, **settings, out=folder).task  # what cannot be a setting is told before the work
    if task != TASK:
        raise InputError(f"the recipe is for the task {task}; folds are made of pictures by class")
    if own_splits(recognise(data).splits(data) or ()):
        raise InputError(f"'{data}' has splits of its own; folds are for data without: give a folder with <class>/…")
    images = open_data(data, "val", size=(64, 64), val_fraction=1)
    places = write_folds(images, folds, folder / "data")
    rows = [one_fold(model, place, settings, folder / place.name, device) for place in places]
    result = summary([row["figure"] for row in rows])
    with result_folder(folder / "result", RESULT_JSON) as staging:
        write_json(staging / RESULT_JSON, {"model": model, "data": data, **result, "rows": rows, "files": []})
    show(model, folds, rows, result)
    return result


def one_fold(model: str, place: Path, settings: dict[str, Any], run: Path, device: str) -> dict[str, Any]:
    metric = load_task(TASK).main_metric

    def work() -> dict[str, float]:
        print(printable(f"\n{place.name}: {place}"))
        train(model, str(place), **{"device": device, **settings}, out=run)
        line = best_validation(run, metric)
        if line is None:
            raise InputError(f"{run} has no validation with {metric}")
        return {"figure": line[metric], "epoch": line["epoch"]}

    found = done_once(run / FOLD_FILE, {"model": model, "data": str(place), **settings}, work, option="--out")
    return {"fold": place.name, "folder": str(run), **found}


def summary(figures: list[float]) -> dict[str, float]:
    return {
        "mean": statistics.mean(figures),
        "deviation": statistics.stdev(figures),
        "lowest": min(figures),
        "highest": max(figures),
    }


def show(model: str, folds: int, rows: list[dict[str, Any]], result: dict[str, float]) -> None:
    metric = load_task(TASK).main_metric
    lines = [(row["fold"], figure_text(metric, row["figure"]), f"{row['epoch']:g}") for row in rows]
    Console().print(console_table(Grid(f"{model}, {folds} folds", ("fold", metric, "best epoch"), lines)))
    shown = {name: figure_text(metric, value) for name, value in result.items()}
    print(f"{metric}: {shown['mean']}, standard deviation {shown['deviation']} over {folds} folds")
