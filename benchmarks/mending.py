"""Does teaching where to look remove a planted shortcut? A small PaCa, row by row and seed by seed.

    python benchmarks/mending.py --out runs/mending
    python benchmarks/mending.py --rows plain "masks" "masks 10 %" "tuned 1" --strengths 0.8 0.95 --seeds 0
    python benchmarks/mending.py --no-readout --epochs 2 --out runs/mending_mean

A mark in a corner tells the class in a share of the training pictures, the strength. Every run is trained with one
thread, and measured on test pictures with random marks and without any; `worst group` is the class with the lowest
share of right answers among pictures whose mark is another class's. Runs and figures that exist are kept, so that the
command can be interrupted and given again; other --epochs or --no-readout need another --out. It ends with the table of
docs/benchmarks.md.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from vitreous.clusters.gates import cluster_layer, maps_of
from vitreous.data.image_set import ImageSet
from vitreous.data.regions import named_regions, region_masks
from vitreous.data.source import open_data
from vitreous.files.storage import write_json
from vitreous.mend import mend
from vitreous.runs.model_folder import load_classifier
from vitreous.runs.trained_model import TrainedModel, in_batches
from vitreous.train import train

MODEL = "paca_b0"
TRUNK = "dims=(48,96) depths=(1,2) heads=(1,3) clusters=4 recluster=0 mlp_ratios=(2,4) stem_stride=4"
READOUT = ("readout=clusters", "readout_clusters=8")
BASE: dict[str, Any] = dict(recipe="quick", val_count=100, workers=0, device="cpu")
MASKS: dict[str, Any] = dict(attend_to="masks")
PLAIN, CLEAN, CLOSED = "plain", "no shortcut", "overlap, closed"
FROM_PLAIN = ("tuned 1", "tuned 2", "tuned 1, 10 %", "tuned 2, 10 %", "last layer")
ROWS: dict[str, dict[str, Any]] = {
    CLEAN: {},  # the same marks, which tell nothing
    PLAIN: {},
    "masks": MASKS,
    "masks 50 %": dict(MASKS, attend_share=0.5),
    "masks 10 %": dict(MASKS, attend_share=0.1),
    "masks 5 %": dict(MASKS, attend_share=0.05),
    "masks, nothing hidden": dict(MASKS, attend_hide=0.0),
    "hidden only": dict(MASKS, attend_weight=0.0),
    "away from the corners": dict(attend_away="corners"),
    "tuned 1": dict(MASKS, epochs=1),
    "tuned 2": dict(MASKS, epochs=2),
    "tuned 1, 10 %": dict(MASKS, epochs=1, attend_share=0.1),
    "tuned 2, 10 %": dict(MASKS, epochs=2, attend_share=0.1),
    "last layer": dict(train_only="head", epochs=20, train_count=400),  # on pictures whose marks tell nothing
    "group-balanced": dict(balance_groups=("class", "mark")),  # every class with every mark equally often
    "erasing": dict(erasing=0.5),
    "overlap": dict(cluster_overlap=0.5),
    CLOSED: dict(cluster_overlap=0.5),  # `overlap` without the clusters that look into corners
}
PICTURES, IN_CORNERS = 1000, 0.5  # of the test; share of a cluster's map there from which on it is closed


def main(
    out: Path = Path("runs/mending"),
    rows: tuple[str, ...] = tuple(ROWS),
    strengths: tuple[float, ...] = (0.8, 0.95),
    seeds: tuple[int, ...] = (0, 1, 2),
    epochs: int = 6,
    readout: bool = True,
) -> None:
    torch.set_num_threads(1)
    base = dict(BASE, epochs=epochs, model_args=(*TRUNK.split(), *(READOUT if readout else ())))
    found: dict[tuple[str, float], list[dict[str, float]]] = {}
    for seed in seeds:  # in turns, so that partial results can be compared
        for strength in strengths:
            for row in rows:
                figures = measured(out, row, strength, seed, base)
                found.setdefault((row, strength), []).append(figures)
                print(f"{row}, {strength:g}, seed {seed}: {figures}", flush=True)
    table = as_table(found, rows, strengths)
    (out / "table.md").write_text(table, encoding="utf-8")
    print(table)


def place(out: Path, row: str, strength: float, seed: int) -> Path:
    strength = 0 if row == CLEAN else strength  # one run for all strengths: its marks tell nothing
    name = row.replace(" ", "_").replace(",", "").replace("%", "percent")
    return out / f"{name}_{strength:g}_{seed}"


def measured(out: Path, row: str, strength: float, seed: int, base: dict[str, Any]) -> dict[str, float]:
    """Train and measure what is not there yet."""
    run = place(out, row, strength, seed)
    stored = run / "mending.json"
    if stored.is_file():
        return json.loads(stored.read_text(encoding="utf-8"))
    start = time.process_time()
    if row == CLOSED:
        before = measured(out, "overlap", strength, seed, base)
        close_corner_clusters(place(out, "overlap", strength, seed), run, strength)
        seconds = before["seconds"]
    else:
        train_row(out, row, strength, seed, base)
        seconds = time.process_time() - start
    trained = load_classifier(run if row == CLOSED else run / "final", size=None, device="cpu")
    figures = {"seconds": seconds, **right_answers(trained, strength)}
    write_json(stored, figures)
    return figures


def train_row(out: Path, row: str, strength: float, seed: int, base: dict[str, Any]) -> None:
    told = strength if row not in (CLEAN, "last layer") else 0
    changes = dict(ROWS[row])
    if row in FROM_PLAIN:
        measured(out, PLAIN, strength, seed, base)
        changes["weights"] = str(place(out, PLAIN, strength, seed) / "final")
    marked = f"shapes:corner_mark={told:g}"
    train(MODEL, marked, out=place(out, row, strength, seed), seed=seed, **{**base, **changes})


def right_answers(trained: TrainedModel, strength: float) -> dict[str, float]:
    """Shares of right answers, with random marks, without any, and of the worst group."""
    data = f"shapes:corner_mark={strength:g}"
    marked = open_data(data, "test", size=trained.preprocess.size, count=PICTURES, targets="labels")
    bare = open_data(f"{data},test=absent", "test", size=trained.preprocess.size, count=PICTURES, targets="labels")
    labels = np.array([marked.target(index)["labels"] for index in range(len(marked))])
    misled = np.array([marked.attributes(index)["agrees"] == "no" for index in range(len(marked))])
    right = answers(trained, marked) == labels
    groups = [right[misled & (labels == label)].mean() for label in np.unique(labels)]
    return {
        "random": float(right.mean()),
        "none": float((answers(trained, bare) == labels).mean()),
        "worst group": float(min(groups)),
    }


@torch.inference_mode()
def answers(trained: TrainedModel, images: ImageSet) -> np.ndarray:
    found = []
    for numbers in in_batches(range(len(images)), 100):
        pixels = torch.stack([trained.preprocess(images.picture(number)) for number in numbers])
        found.append(trained.model(pixels).argmax(1).numpy())
    return np.concatenate(found)


@torch.inference_mode()
def close_corner_clusters(run: Path, out: Path, strength: float) -> None:
    """Close the clusters of the readout whose maps lie in corners in the mean, but never all."""
    trained = load_classifier(run / "final", size=None, device="cpu")
    images = open_data(f"shapes:corner_mark={strength:g}", "train", size=trained.preprocess.size, targets="labels")
    pixels = torch.stack([trained.preprocess(images.picture(number)) for number in range(200)])
    _, maps = maps_of(trained.model, pixels, cluster_layer(trained.model))  # (B, M, H, W)
    corners = region_masks(named_regions("corners"), torch.zeros(1, 3, *maps.shape[2:]))
    shares = (maps * corners[:, None]).sum((2, 3)).mean(0)  # (M,)
    print(f"{run}: shares of the clusters' maps in corners: {[round(share, 2) for share in shares.tolist()]}")
    closed = [number for number, share in enumerate(shares.tolist()) if share >= IN_CORNERS]
    closed = closed if len(closed) < len(shares) else sorted(shares.argsort(descending=True)[:-1].tolist())
    if not closed:
        closed = [int(shares.argmax())]
    mend(str(run / "final"), out=out, without_clusters=(",".join(map(str, closed)),))


def as_table(
    found: dict[tuple[str, float], list[dict[str, float]]], rows: tuple[str, ...], strengths: tuple[float, ...]
) -> str:
    titles = [f"{title}, {strength:g}" for strength in strengths for title in ("random mark", "no mark", "worst group")]
    lines = [f"| | {' | '.join(titles)} | training time |", f"|---|{'---:|' * (len(titles) + 1)}"]
    for row in rows:
        cells, times = [], []
        for strength in strengths:
            runs = found[row, strength]
            cells += [spread([run[name] for run in runs]) for name in ("random", "none", "worst group")]
            plain = found.get((PLAIN, strength))
            if plain is not None:
                times.append(np.mean([run["seconds"] for run in runs]) / np.mean([run["seconds"] for run in plain]))
        lines.append(f"| {row} | {' | '.join(cells)} | {f'{100 * np.mean(times):.0f} %' if times else ''} |")
    return "\n".join([*lines, ""])


def spread(values: list[float]) -> str:
    shown = f"{100 * np.mean(values):.1f} %"
    return shown if len(values) == 1 else f"{shown} ± {100 * np.std(values, ddof=1):.1f}"


if __name__ == "__main__":
    tyro.cli(main)
