"""Are planted shortcuts found? Small PaCa models trained with and without them, and whether the first suspect is it.

    python benchmarks/shortcuts.py --out runs/shortcuts
    python benchmarks/shortcuts.py --kinds corner_mark texture --strengths 0.7 0.95 --seeds 0 1

Each model is trained on the embedded shapes with one thread; then suspects are looked for in held-out pictures, in
which marks are random, with and without the masks of objects. Runs and figures that exist are kept, so that the command
can be interrupted and given again. It ends with the table of docs/shortcuts.md.
"""

import json
import time
from pathlib import Path
from typing import Any

import torch
import tyro

from vitreous.files.storage import write_json
from vitreous.reports.shortcuts import Shortcuts, Suspect
from vitreous.shortcuts import shortcuts
from vitreous.suspects.candidates import box_area, box_overlap
from vitreous.train import train

# The model of benchmarks/explainable.py that reads clusters.
MODEL = "paca_b0"
MODEL_ARGS = (
    *("dims=(48,96)", "depths=(1,2)", "heads=(1,3)", "clusters=4", "recluster=0", "mlp_ratios=(2,4)", "stem_stride=4"),
    *("readout=clusters", "readout_clusters=4"),
)
CLEAN = "clean"
MARK_BOXES = {"corner_mark": (0.0, 0.0, 10 / 64, 10 / 64), "stripe": (0.0, 59 / 64, 1.0, 1.0)}  # where most of them are
KIND_OF_SUSPECT = {"colour_cast": "colour", "texture": "background"}


def main(
    out: Path = Path("runs/shortcuts"),
    kinds: tuple[str, ...] = ("corner_mark", "stripe", "colour_cast", "texture"),
    strengths: tuple[float, ...] = (0.7, 0.8, 0.9, 0.95),
    seeds: tuple[int, ...] = (0,),
    clean_seeds: tuple[int, ...] = (0, 1),
    epochs: int = 2,
    train_count: int = 4000,
    limit: int = 400,
) -> None:
    torch.set_num_threads(1)
    planted = [(kind, strength, seed) for seed in seeds for strength in strengths for kind in kinds]
    clean = [(CLEAN, 0.0, seed) for seed in clean_seeds]
    rows = []
    for kind, strength, seed in [*clean[:1], *planted, *clean[1:]]:
        rows.append(figures(out, kind, strength, seed, epochs, train_count, limit))
        print(json.dumps(rows[-1]), flush=True)
    table = as_table(rows)
    (out / "table.md").write_text(table, encoding="utf-8")
    print(table)


def figures(
    out: Path, kind: str, strength: float, seed: int, epochs: int, train_count: int, limit: int
) -> dict[str, Any]:
    """What was found in one model; kept in its run folder."""
    data = "shapes" if kind == CLEAN else f"shapes:{kind}={strength:g}"
    run = out / f"{kind}_{strength:g}_{seed}"
    stored = run / f"found_{limit}.json"
    if stored.is_file():
        return json.loads(stored.read_text(encoding="utf-8"))
    start = time.process_time()
    options: dict[str, Any] = dict(recipe="quick", epochs=epochs, train_count=train_count, val_count=100)
    train(
        MODEL, data, out=run, seed=seed, workers=0, device="cpu", model_args=MODEL_ARGS, cluster_overlap=0.5, **options
    )
    row: dict[str, Any] = dict(
        kind=kind, strength=strength, seed=seed, train_seconds=round(time.process_time() - start)
    )
    for name, masks in (("masks", True), ("no masks", False)):
        start = time.process_time()
        # The test split: nothing was chosen on it.
        found = shortcuts(
            str(run / "final"),
            data,
            split="test",
            limit=limit,
            masks=masks,
            device="cpu",
            out=run / name.replace(" ", "_"),
        )
        row["accuracy"] = found.accuracy
        row[name] = judged(found, kind) | {"seconds": round(time.process_time() - start)}
    write_json(stored, row)
    return row


def judged(found: Shortcuts, kind: str) -> dict[str, Any]:
    first = found.suspects[0]
    return {
        "first": f"{first.verdict}: {first.name}",
        "found": is_planted(first, kind) and first.verdict != "harmless",
        "serious": [one.name for one in found.serious()],
        "changed": first.changed.mean,
    }


def is_planted(suspect: Suspect, kind: str) -> bool:
    """Whether a suspect is what was planted: by its kind, or by a box that holds most of the mark."""
    if kind in KIND_OF_SUSPECT:
        return suspect.kind == KIND_OF_SUSPECT[kind]
    if kind == CLEAN or suspect.box is None:
        return False
    return box_overlap(suspect.box, MARK_BOXES[kind]) >= 0.5 * min(box_area(suspect.box), box_area(MARK_BOXES[kind]))


def as_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| planted | strength | seed | accuracy | first suspect, with masks | without masks |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            f"{'✓ ' if row[name]['found'] else '' if row['kind'] == CLEAN else '✗ '}{row[name]['first']}"
            for name in ("masks", "no masks")
        ]
        accuracy = f"{100 * row['accuracy']:.0f} %"
        lines.append(f"| {row['kind']} | {row['strength']:g} | {row['seed']} | {accuracy} | {' | '.join(cells)} |")
    planted, clean = ([row for row in rows if (row["kind"] == CLEAN) == plain] for plain in (False, True))
    for name in ("masks", "no masks"):
        first, quiet = sum(row[name]["found"] for row in planted), sum(not row[name]["serious"] for row in clean)
        said = f"{first} of {len(planted)} planted shortcuts are the first suspect"
        lines += ["", f"With {name}: {said}; none is serious in {quiet} of {len(clean)} clean models."]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    tyro.cli(main)
