"""Does the recipe `explainable` make clusters carry the decision? A small PaCa, plain and with it, seed by seed.

    python benchmarks/explainable.py --out runs/explainable
    python benchmarks/explainable.py --kinds mean readout "overlap 0.5" "4 read" "temperature 0.5" entropy dropout
    python benchmarks/explainable.py --out runs/pets --kinds mean readout --data pets --split val --maps cluster_group

`mean` and `readout` are the same trunk with both kinds of classifier; each of the others is `readout` and one change.
With --data, runs `<out>/<kind>_<seed>` that exist are measured on those pictures; nothing is trained. Fewer --maps, of
which one must be of clusters, make it shorter: most of the time goes into their insertion and deletion.

Every run is trained on the embedded shapes with one thread and then measured on pictures that it was not chosen on;
runs and figures that exist are kept, so that the command can be interrupted and given again. It ends with the table
of docs/benchmarks.md: means over seeds and pictures, and 95 % intervals of a bootstrap that draws both.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor, nn

from vitreous.attribution.catalogue import controls_for, methods_for
from vitreous.attribution.controls import OracleMask
from vitreous.attribution.method import resolve
from vitreous.attribution.target import Target
from vitreous.clusters.gates import PartialForward, cluster_layer, maps_of
from vitreous.clusters.groups import ablate_groups, group_gates, group_maps
from vitreous.clusters.load import causal_load
from vitreous.data.source import open_data
from vitreous.evaluate import evaluate
from vitreous.explanations.dataset import selection
from vitreous.explanations.scores import class_batches
from vitreous.faithfulness.scoring import DECIDES, ScoringBatch, measured
from vitreous.files.storage import write_json
from vitreous.runs.model_folder import load_classifier
from vitreous.train import train

# The recipe's own model, and the same one with PaCa's usual number of clusters.
SMALL = "dims=(48,96) depths=(1,2) heads=(1,3) clusters={} recluster=0 mlp_ratios=(2,4) stem_stride=4"
MANY, FEW = tuple(SMALL.format(49).split()), tuple(SMALL.format(4).split())
MODEL = "paca_b0"
READ = (*FEW, "readout=clusters")


def kind(model_args: tuple[str, ...], **changes: float) -> dict[str, Any]:
    return dict(recipe="quick", epochs=6, model_args=model_args, **changes)


KINDS: dict[str, dict[str, Any]] = {
    "plain": kind(MANY),
    "explainable": dict(recipe="explainable"),
    "mean": kind(FEW, cluster_overlap=0.5),  # the recipe without its readout
    "readout": kind(READ),
    "overlap 0.5": kind(READ, cluster_overlap=0.5),
    "4 read": kind((*READ, "readout_clusters=4")),
    "4 read, overlap 0.5": kind((*READ, "readout_clusters=4"), cluster_overlap=0.5),
    "read 0.1": kind((*READ, "readout_clusters=4"), cluster_overlap=0.5, cluster_read_entropy=0.1),  # the recipe
    "faithful": kind(
        (*READ, "readout_clusters=4"), cluster_overlap=0.5, cluster_read_entropy=0.1, cluster_faithful=1.0
    ),
    "16 read": kind((*READ, "readout_clusters=16")),
    "both stages": kind((*READ, "readout_stages=(1,2)")),
    "temperature 0.5": kind((*READ, "readout_temperature=0.5")),
    "entropy": kind(READ, cluster_map_entropy=0.2),
    "dropout": kind(READ, cluster_dropout=0.2),
    "group dropout": kind(READ, cluster_group_dropout=0.5),
}
CLUSTERS = (
    "contributions",  # where the classifier reads clusters
    "token_gradient",
    "cluster_group",
    "clusters attention_mass",
    "clusters attention_mass top 1",
    "clusters ablation top 1",
    "clusters masking top 1",
)
OTHERS = ("occlusion", "rise", "integrated_gradients", "input_gradient", "rollout", "grad_cam")
CONTROLS = ("centre_blob", "random_map", "clusters random top 1")  # and the true mask
ORACLE = "oracle_mask"
DRAWS, RESAMPLES = 4, 2000


def main(
    out: Path = Path("runs/explainable"),
    kinds: tuple[str, ...] = ("plain", "explainable"),
    seeds: tuple[int, ...] = (0, 1, 2),
    images: int = 100,
    portions: int = 8,
    data: str | None = None,
    split: str = "test",
    maps: tuple[str, ...] = CLUSTERS + OTHERS + CONTROLS,
) -> None:
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in seeds:  # in turns, so that partial results can be compared
        for name in kinds:
            run, start = out / f"{name.replace(' ', '_')}_{seed}", time.process_time()
            if data is None:
                train(MODEL, "shapes", out=run, seed=seed, workers=0, device="cpu", **KINDS[name])
                print(f"{run}: {time.process_time() - start:.0f} s of processor time", flush=True)
            found.setdefault(name, []).append(figures(run, data or "shapes", split, images, portions, maps))
    table = as_table(found)
    (out / "table.md").write_text(table, encoding="utf-8")
    print(table)


def figures(run: Path, data: str, split: str, images: int, portions: int, maps: Sequence[str]) -> dict[str, Any]:
    """Measurements of one run; values are lists over the pictures."""
    stored = run / f"figures_{images}.json"
    if stored.is_file():
        return json.loads(stored.read_text(encoding="utf-8"))
    count = 2000 if data == "shapes" else None
    top1 = evaluate(str(run / "final"), data, split=split, count=count, workers=0, device="cpu")["top1"]
    trained = load_classifier(run / "final", size=None, device="cpu")
    pictures = open_data(data, split, size=trained.preprocess.size)
    values: dict[str, list[float]] = {"top1": [top1]}
    for batch in class_batches(trained, pictures, selection(len(pictures), images), 20):
        for name, numbers in of_batch(trained.model, batch, maps, portions).items():
            values.setdefault(name, []).extend(numbers.tolist())
    write_json(stored, values)
    return values


def of_batch(model: nn.Module, batch: ScoringBatch, maps: Sequence[str], portions: int) -> dict[str, Tensor]:
    target = resolve(model, batch.images, None)
    values = {}
    for load in causal_load(model, batch.images, target):
        name = cluster_layer(model, load.stage).name
        values[f"{name} load"] = load.drop("uniform")
        values[f"{name} flips"] = load.flips("uniform").float()
        values[f"{name} carries"] = load.carries.float()
    values |= top_group(model, batch.images, target)
    known = {method.name: method for method in (*methods_for(model), *controls_for(model))}
    methods = [*(known[name] for name in maps if name in known), OracleMask(batch.masks)]
    for method in methods:
        scores = measured(model, method, batch, target, ("blur", "mean"), portions, sanity=False)
        values |= {f"{method.name} {measure}": scores[measure] for measure in (DECIDES, "pointing_near")}
    return values


def top_group(model: nn.Module, images: Tensor, target: Target) -> dict[str, Tensor]:
    """The effect of removing the most important group of similar clusters of the last layer, each (B,).

    As many clusters taken at random are the control; the same number of draws for each picture, seeded.
    """
    layer, random = cluster_layer(model), torch.Generator().manual_seed(0)
    found: dict[str, list[Tensor]] = {"top group flips": [], "random set flips": [], "top group share": []}
    with torch.no_grad():
        maps = maps_of(model, images, layer)[1]
        for b in range(len(images)):
            rest, own = PartialForward(model, images[b : b + 1], layer), target.select(torch.full((1 + DRAWS,), b))
            label = group_maps(maps[b])
            worst = group_gates(label)[ablate_groups(rest, own.select(torch.tensor([0])), label)[0].argmax()]
            sets = [worst[torch.randperm(len(worst), generator=random)] for _ in range(DRAWS)]
            output = rest.without(torch.zeros(1 + DRAWS, dtype=torch.long), torch.stack([worst, *sets]))
            first, *others = (~own.holds(output)).float()
            for name, number in zip(found, (first, torch.stack(others).mean(), 1 - worst.mean()), strict=True):
                found[name].append(number)
    return {name: torch.stack(numbers) for name, numbers in found.items()}


# The table ----------------------------------------------------------------------------------------


def as_table(found: dict[str, list[dict[str, Any]]]) -> str:
    stages = sorted({name for runs in found.values() for name in runs[0] if name.endswith(" load")})
    best = {kind: best_of(runs, CLUSTERS + OTHERS) for kind, runs in found.items()}
    clusters = {kind: best_of(runs, CLUSTERS) for kind, runs in found.items()}
    rows: list[tuple[str, Callable[[str], str], Callable[[float], str]]] = [("top-1", lambda _: "top1", percent)]
    for name in stages:
        stage = name.removesuffix(" load")
        rows.append((f"{stage}: log-odds lost with uniform maps", lambda _, name=name: name, plain))
        rows.append((f"{stage}: answers changed by it", lambda _, stage=stage: f"{stage} flips", percent))
        rows.append((f"{stage}: images in which it carries load", lambda _, stage=stage: f"{stage} carries", percent))
    rows.append(("answers changed without the top group of the last layer", lambda _: "top group flips", percent))
    rows.append(("… without as many clusters at random", lambda _: "random set flips", percent))
    rows.append(("share of the clusters that the top group has", lambda _: "top group share", percent))
    rows.append(("default map within 2 pixels of the object", lambda kind: f"{best[kind]} pointing_near", percent))
    rows.append(("best cluster map within 2 pixels", lambda kind: f"{clusters[kind]} pointing_near", percent))
    rows.append(("insertion − deletion, default map", lambda kind: f"{best[kind]} {DECIDES}", plain))
    rows += [
        (f"… above `{name}`", lambda kind, name=name: f"{best[kind]} {DECIDES} - {name} {DECIDES}", plain)
        for name in ("random_map", "centre_blob", "grad_cam")
    ]
    rows += [
        (f"insertion − deletion, `{name}`", lambda _, name=name: f"{name} {DECIDES}", plain)
        for name in (*CLUSTERS, *OTHERS, *CONTROLS, ORACLE)
    ]
    lines = [f"| | {' | '.join(found)} |", f"|---|{'---|' * len(found)}"]
    for title, name_for, shown in rows:
        lines.append(f"| {title} | {' | '.join(cell(runs, name_for(kind), shown) for kind, runs in found.items())} |")
    count = len(next(iter(found.values()))[0]["top group flips"])
    kept = "; ".join(f"{kind}: `{best[kind]}`, of clusters `{clusters[kind]}`" for kind in found)
    return "\n".join([*lines, "", f"Default maps: {kept}. {count} pictures a seed.", ""])


def best_of(runs: Sequence[dict[str, Any]], maps: Sequence[str]) -> str:
    known = [name for name in maps if f"{name} {DECIDES}" in runs[0]]
    return max(known, key=lambda name: float(np.mean([run[f"{name} {DECIDES}"] for run in runs])))


def cell(runs: Sequence[dict[str, Any]], name: str, shown: Callable[[float], str]) -> str:
    """Mean and interval; "a - b" is the difference on the same pictures. Nothing where a model has no such thing."""
    if any(part not in runs[0] for part in name.split(" - ")):
        return ""
    values, *others = (np.array([run[part] for run in runs]) for part in name.split(" - "))  # (seeds, pictures)
    for other in others:
        values = values - other
    random = np.random.default_rng(0)
    drawn = [
        values[np.ix_(*(random.integers(count, size=count) for count in values.shape))].mean() for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{shown(values.mean())} [{shown(low)}, {shown(high)}]"


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def plain(value: float) -> str:
    return f"{value:.2f}"


if __name__ == "__main__":
    tyro.cli(main)
