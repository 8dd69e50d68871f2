"""Is a mark planted into photographs unlearned? Class folders with masks in, a table of what each way wins back out.

    python benchmarks/marked_pets.py pets --weights tf_efficientnet_lite0.safetensors --out runs/marked_pets
    python benchmarks/marked_pets.py pets --species --small --size 64 --epochs 10 --lr 6e-3 --out runs/marked_species

A copy of the pictures, cut to the square in their middle, gets a mark of two colours in the upper left corner, one pair
of colours for each class; training crops at least 80 % of a picture, so that most show it. In
`strength` of the training pictures it is that of their own class, in all others, and in val, that of a class drawn at
random. What the square covers is no longer part of the object's mask. The row `no shortcut` learns from squares that
tell nothing.

Groups: with dozens of classes a group of class and mark has no picture or one, and the worst of many small groups is
low by chance. So the classes, in the order of their names, are cut into four parts, and a group is the part of the
picture's class and the part of the class whose mark it shows: 16 groups, or 4 of two classes. `metadata.csv` has them
as `part` and `mark_part`, beside `mark` and `agrees`; the row `group-balanced` draws
all pairs of class and mark equally often.

`--species` asks for cat or dog, drawn equally often, instead of the breed: Oxford's names of cats begin with a capital.
`--small` trains the PaCa of `mending.py`, whose classifier reads clusters.

"Won back" is the share of what the shortcut costs: (row - plain) / (no shortcut - plain), for the mean and for the
worst group; with several seeds each one's alone, then their mean. Runs and figures that exist are kept, so that the
command can be interrupted and given again.
"""

import csv
import itertools
import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from mending import MODEL, READOUT, TRUNK, place, spread
from PIL import Image, ImageOps

from vitreous.data.image_set import ImageSet
from vitreous.data.metadata import METADATA_FILE
from vitreous.data.source import open_data
from vitreous.files.storage import remove_path, write_json
from vitreous.mend import measure_figures, mend
from vitreous.train import train

PLAIN, CLEAN, HIDDEN = "plain", "no shortcut", "hidden"
MASKS: dict[str, Any] = dict(attend_to="masks")
AWAY: dict[str, Any] = dict(attend_away="upper left")
ROWS: dict[str, dict[str, Any]] = {
    CLEAN: {},
    PLAIN: {},
    "group-balanced": dict(balance_groups=("class", "mark")),
    "erasing": dict(erasing=0.5),
    "masks": MASKS,
    "tuned 1": dict(MASKS, epochs=1),
    "tuned 2": dict(MASKS, epochs=2),
    "away 1": dict(AWAY, epochs=1),
    "away 2": dict(AWAY, epochs=2),
    "last layer": dict(train_only="head", epochs=5),  # on pictures whose marks tell nothing
    HIDDEN: {},  # `plain` with the corner painted over
}
FROM_PLAIN = ("tuned 1", "tuned 2", "away 1", "away 2", "last layer")
BASE: dict[str, Any] = dict(
    recipe="finetune",
    pretrained=False,
    augment="",
    erasing=0.0,
    scale=0.8,
    crop_ratio=1.0,
    warmup_epochs=0.5,
    workers=0,
    channels_last=True,
)
SPLITS, PARTS, SPECIES = ("train", "val"), 4, ("cat", "dog")
GROUPS = ("part", "mark_part")
MARK_SHARE = 10 / 64  # of the side
MARGIN = 4 / 3  # pictures are kept somewhat larger than the model sees them, for crops
COLOURS = ((220, 30, 30), (30, 180, 40), (40, 70, 230), (240, 220, 30), (230, 60, 220), (40, 220, 230), (245, 245, 245))
PAIRS = tuple(itertools.permutations(COLOURS, 2))  # of the upper and the lower half: a mirrored mark is the same


def main(
    data: tyro.conf.Positional[str],
    out: Path = Path("runs/marked_pets"),
    model: str = "tf_efficientnet_lite0",
    model_args: tuple[str, ...] = (),
    weights: str | None = None,
    species: bool = False,
    small: bool = False,
    rows: tuple[str, ...] = tuple(ROWS),
    strength: float = 0.95,
    seeds: tuple[int, ...] = (0, 1, 2),
    size: int = 128,
    epochs: int = 5,
    lr: float = 1e-3,
    limit: int | None = None,
) -> None:
    """
    Args:
        data: Folder with train/<class>/, val/<class>/ and masks/.
        out: Folder for the marked copies, the runs and the table.
        model: Classifier to train.
        model_args: What it is built with.
        weights: File or run that it starts from; default: from scratch.
        species: Cat or dog, instead of the breed.
        small: The small PaCa of `mending.py`, in place of `model`.
        rows: What to measure; `plain` and `no shortcut` come first.
        strength: Share of the training pictures whose mark is that of their class.
        seeds: Of the runs; the marks are always the same.
        size: Height and width in pixels.
        epochs: Of all rows but those that say another number.
        lr: Learning rate, for batches of 128.
        limit: Pictures of each split, spread over the classes; default: all. To try the script out.
    """
    torch.set_num_threads(1)
    source = {split: open_data(data, split, size=(size, size), targets="labels") for split in SPLITS}
    if small:
        model, model_args = MODEL, (*TRUNK.split(), *READOUT)
    for told in (strength, 0.0):
        write_marked(source, data_folder(out, told), told, limit, round(MARGIN * size), species)
    base = dict(BASE, size=size, epochs=epochs, lr=lr, weights=weights, model_args=model_args, device="cpu")
    base |= dict(balance_classes=species)
    rows = tuple(dict.fromkeys((CLEAN, PLAIN, *rows)))
    found: dict[str, list[dict[str, float]]] = {}
    for seed in seeds:  # in turns, so that partial results can be compared
        for row in rows:
            found.setdefault(row, []).append(measured(out, row, strength, seed, model, base))
            print(f"{row}, seed {seed}: {found[row][-1]}", flush=True)
    table = as_table(found)
    (out / "table.md").write_text(table, encoding="utf-8")
    print(table)


def data_folder(out: Path, strength: float) -> Path:
    return out / f"data_{strength:g}"


def write_marked(
    source: dict[str, ImageSet], folder: Path, strength: float, limit: int | None, side: int, species: bool
) -> None:
    """A marked copy of the pictures and their masks; complete or not there."""
    if folder.is_dir():
        return
    staging = folder.with_name(folder.name + ".unfinished")
    remove_path(staging)
    for split, images in source.items():
        kept = range(len(images)) if limit is None else np.linspace(0, len(images) - 1, limit).astype(int).tolist()
        classes = SPECIES if species else images.classes
        drawn = np.random.default_rng([SPLITS.index(split), 0])
        told, others = drawn.random(len(images)) < strength, drawn.integers(len(classes), size=len(images))
        rows = []
        for index in kept:
            breed = images.target(index)["labels"]
            label = int(not images.classes[breed][0].isupper()) if species else breed
            mark = label if split == "train" and told[index] else int(others[index])
            name = f"{split}/{classes[label]}/{index:05d}.png"
            write_picture(staging, name, images, index, mark, side)
            agrees = "yes" if mark == label else "no"
            rows.append((name, classes[mark], agrees, part(classes, label), part(classes, mark)))
        with (staging / METADATA_FILE).open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            if split == SPLITS[0]:
                writer.writerow(("file_name", "mark", "agrees", *GROUPS))
            writer.writerows(rows)
    os.replace(staging, folder)


def part(classes: Sequence[str], label: int) -> str:
    """Which part of all classes one is in, by its first and last name there."""
    number = label * PARTS // len(classes)
    inside = [name for place, name in enumerate(classes) if place * PARTS // len(classes) == number]
    return f"{inside[0]} to {inside[-1]}"


def write_picture(folder: Path, name: str, images: ImageSet, index: int, mark: int, side: int) -> None:
    pixels, mask = np.array(ImageOps.fit(images.picture(index), (side, side))), images.object_mask(index)
    side, whole = max(2, round(MARK_SHARE * side)), (side, side)
    for colour, rows in zip(PAIRS[mark % len(PAIRS)], (slice(side // 2), slice(side // 2, side)), strict=True):
        pixels[rows, :side] = colour
    drawn = {folder / name: pixels}
    if mask is not None:
        drawn[folder / "masks" / name] = np.array(ImageOps.fit(mask, whole, Image.Resampling.NEAREST))
        drawn[folder / "masks" / name][:side, :side] = 0
    for file, values in drawn.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(file)


def measured(out: Path, row: str, strength: float, seed: int, model: str, base: dict[str, Any]) -> dict[str, float]:
    """Train and measure what is not there yet."""
    run = place(out, row, strength, seed)
    stored = run / "mending.json"
    if stored.is_file():
        return json.loads(stored.read_text(encoding="utf-8"))
    changes, marked = dict(ROWS[row]), data_folder(out, strength)
    plain = place(out, PLAIN, strength, seed)
    if row in (*FROM_PLAIN, HIDDEN):
        measured(out, PLAIN, strength, seed, model, base)
    start = time.process_time()
    if row == HIDDEN:
        mend(str(plain / "final"), out=run, hide=AWAY["attend_away"])
    else:
        changes |= dict(weights=str(plain / "final")) if row in FROM_PLAIN else {}
        telling = data_folder(out, 0.0) if row in (CLEAN, "last layer") else marked
        changes |= dict(balance_classes=False) if "balance_groups" in changes else {}
        train(model, str(telling), out=run, seed=seed, **{**base, **changes})
    seconds = time.process_time() - start
    trained = run if row == HIDDEN else run / "final"
    figures = measure_figures(trained, str(marked), dict(groups=GROUPS, workers=0, device="cpu"))
    kept = {name: figures[name] for name in ("top1", "group_mean", "worst_group")} | {"seconds": seconds}
    write_json(stored, kept)
    shutil.rmtree(run / "checkpoints", ignore_errors=True)  # finished runs need none, and there are many
    return kept


def as_table(found: dict[str, list[dict[str, float]]]) -> str:
    lines = [
        "| | right | won back | worst group | won back | seconds of training |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row, runs in found.items():
        cells = []
        for name in ("top1", "worst_group"):
            cells.append(spread([run[name] for run in runs]))
            cells.append("" if row in (CLEAN, PLAIN) else won_back(name, runs, found[PLAIN], found[CLEAN]))
        lines.append(f"| {row} | {' | '.join(cells)} | {np.mean([run['seconds'] for run in runs]):.0f} |")
    return "\n".join([*lines, ""])


def won_back(
    name: str, runs: list[dict[str, float]], plain: list[dict[str, float]], clean: list[dict[str, float]]
) -> str:
    """The mean over seeds; nothing where the shortcut costs nothing."""
    shares = [
        (run[name] - before[name]) / (best[name] - before[name])
        for run, before, best in zip(runs, plain, clean, strict=True)
        if best[name] > before[name]
    ]
    return f"{100 * np.mean(shares):.0f} %" if shares else "–"


if __name__ == "__main__":
    tyro.cli(main)
