"""What each part of a family is worth: its model trained whole and without the part, under the same short budget.

The rows are those of the papers, as arguments of the models (`vitreous info MODEL` explains them). Every row is a run
of its own, trained once with each seed; runs that are complete are not trained again, so a command that was interrupted
goes on where it stopped. Short budgets rank parts by how they help to learn fast, not by what they are worth at last.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vitreous.errors import InputError, nearest
from vitreous.figures.counting import figures_of
from vitreous.figures.display import arguments_of
from vitreous.investigations.base import Inquiry, Investigation, coloured
from vitreous.investigations.resolution import share_of_batches
from vitreous.registry import ENTRIES, create_model, resolve_name
from vitreous.reports.chart import Chart, Series
from vitreous.reports.investigation import Findings
from vitreous.runs.model_folder import load_classifier
from vitreous.runs.trained_model import class_columns
from vitreous.runs.trial import done_once

WHOLE = "whole"
FIGURES_FILE = "ablation.json"
SWITCHES: dict[str, dict[str, dict[str, Any]]] = {  # family -> row -> arguments that differ
    "paca": {
        "2 clusters": dict(clusters=(2, 2, 2, 0)),
        "49 clusters": dict(clusters=(49, 49, 49, 0)),
        "100 clusters": dict(clusters=(100, 100, 100, 0)),
        "49 to 100 clusters": dict(clusters=(49, 64, 81, 100)),
        "100 to 49 clusters": dict(clusters=(100, 81, 64, 49)),
        "100 clusters in all stages": dict(clusters=(100,) * 4),
        "100 clusters in every block": dict(clusters=(100,) * 4, recluster=1),
        "mlp clustering": dict(clustering="mlp"),
        "linear clustering": dict(clustering="linear"),
        "clusters in every block": dict(recluster=1),
        "clusters once a stage": dict(recluster=0),
        "clustering teacher": dict(teacher=dict(depths=(1, 1, 1, 1))),
        "read clusters": dict(readout="clusters"),
    },
    "xcit": {
        "without local interaction": dict(local=False),
        "without channel attention": dict(attention=False),
        "without normalisation": dict(normalise=False),
        "fixed temperature": dict(learned_temperature=False),
        "linear patches": dict(linear_stem=True),
    },
    "emsnet": {
        "no branch": dict(branches=()),
        "static only": dict(branches=("static",)),
        "without global attention": dict(branches=("static", "local")),
        "without local attention": dict(branches=("static", "global")),
        "whitening over pixels": dict(whitening="pixel"),
        "without the gate": dict(gate=False),
        "static : dynamic 1 : 1": dict(share=(1, 1)),
        "static 2 : 1 : 1": dict(split=(2, 1, 1)),
        "static 1 : 1 : 2": dict(split=(1, 1, 2)),
    },
    "mat": {
        "no mixer": dict(mixers=("none",) * 4, mlp_depthwise=False),
        "windows alone": dict(mixers=("none", "none", "window", "window")),
        "without positions": dict(position=False),
        "convolutions between stages": dict(embed="conv"),
        "patch merging between stages": dict(embed="merge"),
        "in all stages": dict(mixers=("mat",) * 4),
        "in stages 2 to 4": dict(mixers=("none", "mat", "mat", "mat")),
        "in stage 4 only": dict(mixers=("none", "none", "none", "mat")),
    },
    "partialformer": {
        "plain attention": dict(fractions=(1.0,) * 4, head_mixing=False),
        "without head mixing": dict(head_mixing=False),
        "without the single query": dict(single_query=False),
        "half the foreground": dict(fractions=(1 / 256, 1 / 64, 1 / 16, 1 / 4)),
        "twice the foreground": dict(fractions=(1 / 64, 1 / 16, 1 / 4, 1.0)),
    },
}


class Ablations(Investigation):
    name = "ablate"
    order = 90
    asks = "what each part of a family is worth, by training without it"
    needs_weights = False
    usual_limit = None
    reading = (
        "Right answers, in percent, of the whole model and of the model without a part, all trained alike: the mean "
        "over seeds, and the lowest and highest. Differences smaller than that range mean nothing. A short training "
        "ranks parts by how much they help to learn fast; a part may be worth more, or less, in the end. Parameters "
        "and multiply-adds, at the size of the training, tell what a part costs."
    )

    def run(self, inquiry: Inquiry) -> Findings:
        models = [resolve_name(subject.given) for subject in inquiry.subjects]
        chosen = {model: chosen_switches(model, inquiry.switches) for model in models}  # refused before the work
        rows = [row for model in models for row in trained_rows(model, chosen[model], inquiry)]
        colours, legend = coloured([row["model"] for row in rows])
        series = []
        for model, colour in colours.items():
            own = [row for row in rows if row["model"] == model]
            for key, dashed in (("top1", False), ("low", True), ("high", True)):
                points = tuple((float(place), 100 * row[key]) for place, row in enumerate(own))
                series.append(Series(model, points, colour, model, dashed))
        chart = Chart(
            "right answers, by row of the table", "row, from 0: the whole model", tuple(series), unit="%", ends=(0, 100)
        )
        columns = ("model", "part", "top1", "low", "high", "params", "gmacs")
        return Findings(tuple(rows), (chart,), legend, columns=columns)


def switches_of(model: str) -> dict[str, dict[str, Any]]:
    """The rows that differ from the whole model: `paca_small` has its 100 clusters already."""
    family = next((family for family in SWITCHES if model.startswith(family)), None)
    if family is None or model not in ENTRIES:
        raise InputError(
            f"'{model}' has no parts to leave out; give a model of {', '.join(SWITCHES)} (vitreous info lists them)"
        )
    with torch.device("meta"):
        built: Any = create_model(model)
    whole = arguments_of(built, ENTRIES[model].arguments)
    return {
        part: arguments
        for part, arguments in SWITCHES[family].items()
        if any(comparable(whole[name].value) != comparable(value) for name, value in arguments.items())
    }


def comparable(value: Any) -> Any:
    """A list says the same as a tuple."""
    return tuple(value) if isinstance(value, list) else value


def chosen_switches(model: str, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    known = switches_of(model)
    for name in names:
        if name not in known:
            raise InputError(
                f"--switches {name!r} is no part of {model}, or what it has already; "
                f"nearest: {nearest(name, list(known))}"
            )
    return {name: known[name] for name in names or known}


def trained_rows(model: str, chosen: Mapping[str, dict[str, Any]], inquiry: Inquiry) -> list[dict[str, Any]]:
    rows = []
    for part, arguments in {WHOLE: {}, **chosen}.items():
        runs = [figures_of_run(model, part, arguments, seed, inquiry) for seed in inquiry.seeds]
        shares = [figures["top1"] for figures in runs]
        params, macs = counted(model, arguments, (int(runs[0]["height"]), int(runs[0]["width"])))
        rows.append(
            {
                "model": model,
                "part": part,
                "arguments": {name: repr(value) for name, value in arguments.items()},
                "top1": round(statistics.mean(shares), 4),
                "low": min(shares),
                "high": max(shares),
                "params": params,
                "gmacs": round(macs / 1e9, 3),
                "size": int(runs[0]["height"]),
                "pictures": int(runs[0]["pictures"]),
                "seeds": list(inquiry.seeds),
            }
        )
    return rows


def counted(model: str, arguments: Mapping[str, Any], size: tuple[int, int]) -> tuple[int, int]:
    """Parameters and multiply-adds of a row, at the size it was trained with."""
    with torch.device("meta"):
        built: Any = create_model(model, **arguments)
    figures = figures_of(built, size)
    return figures["params"], figures["macs"]


def figures_of_run(
    model: str, part: str, arguments: Mapping[str, Any], seed: int, inquiry: Inquiry
) -> dict[str, float]:
    """Trained and measured, unless it was before under the same budget."""
    budget = {"data": inquiry.data, "epochs": inquiry.epochs, "size": inquiry.subjects[0].size, "limit": inquiry.limit}
    run = inquiry.runs / f"{model}_{part}_{seed}".replace(" ", "_").replace(":", "to")

    def work() -> dict[str, float]:
        assert inquiry.train is not None
        inquiry.train(
            model,
            inquiry.data,
            recipe="quick",
            epochs=inquiry.epochs,
            size=inquiry.subjects[0].size,
            model_args=tuple(f"{name}={value!r}" for name, value in arguments.items()),
            seed=seed,
            device=inquiry.device,
            out=run,
        )
        trained = load_classifier(run, size=None, device=inquiry.device)
        columns = class_columns(trained, inquiry.images(trained).classes)
        share, count = share_of_batches(trained, inquiry, f"{part}, seed {seed}", columns)
        height, width = trained.preprocess.size
        return {"top1": round(share, 4), "pictures": count, "height": height, "width": width}

    return done_once(run / FIGURES_FILE, budget, work, option="--runs")


INVESTIGATION = Ablations()
