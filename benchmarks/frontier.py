"""How faithful a map can be for how many passes: all methods of the catalogue on trained models, paired with occlusion.

    python benchmarks/frontier.py runs/shapes-seed0 runs/shapes-seed1 runs/shapes-seed2 --data shapes
    python benchmarks/frontier.py runs/frontier/0 runs/frontier/1 --train-recipe quick

With --train-recipe a run folder that does not exist is trained first: a small PaCa on the embedded shapes by this
recipe, one seed a folder. Values are kept in each run folder, so that the command can be interrupted and given again.
It prints a Markdown table: means over runs and pictures, 95 % intervals of a bootstrap that draws pictures, and the
difference to occlusion on the same pictures.
"""

import json
import platform
from pathlib import Path

import torch
import tyro

from vitreous.attribution.catalogue import find_method, methods_for
from vitreous.data.source import open_data
from vitreous.explanations.scores import class_batches
from vitreous.faithfulness.curves import PORTIONS
from vitreous.faithfulness.intervals import bootstrap, paired
from vitreous.faithfulness.scoring import DECIDES, score_methods
from vitreous.files.storage import write_json
from vitreous.runs.model_folder import load_classifier
from vitreous.train import train

SMALL = "dims=(48,96) depths=(1,2) heads=(1,3) clusters=49 recluster=0 mlp_ratios=(2,4) stem_stride=4"
REFERENCE = "occlusion"


def main(
    runs: tuple[Path, ...],
    /,
    data: str = "shapes",
    split: str = "test",
    images: int = 200,
    method: tuple[str, ...] = (),
    train_recipe: str | None = None,
    epochs: int = 6,
) -> None:
    torch.set_num_threads(1)
    found: dict[str, tuple[int, list[float]]] = {}
    for seed, run in enumerate(runs):
        if train_recipe is not None and not run.exists():
            settings = dict(recipe=train_recipe, epochs=epochs, model_args=tuple(SMALL.split()))
            train("paca_b0", "shapes", out=run, seed=seed, workers=0, device="cpu", **settings)
        for name, (passes, values) in measure(run, data, split, images, method).items():
            found.setdefault(name, (passes, []))[1].extend(values)
    print(as_table(found))
    print(
        f"\n{len(runs)} runs, {images} pictures of {data} ({split}) each; "
        f"{platform.machine()}, torch {torch.__version__}"
    )


def measure(
    run: Path, data: str, split: str, images: int, methods: tuple[str, ...]
) -> dict[str, tuple[int, list[float]]]:
    """Passes and values over the pictures, by method; those that are stored are not measured again."""
    stored = run / f"frontier_{split}_{images}.json"
    known = json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else {}
    trained = load_classifier(run, size=None, device="cpu")
    pictures = open_data(data, split, size=trained.preprocess.size)
    names = list(methods) or [method.name for method in methods_for(trained.model)]
    for name in dict.fromkeys([REFERENCE, *names]):
        if name in known:
            continue
        scores = score_methods(
            trained.model,
            class_batches(trained, pictures, images, 20),
            methods=[find_method(name, trained.model)],
            fills=("blur",),
            portions=PORTIONS,
            sanity=0,
        )
        known |= {one: (scores.passes[one], found[DECIDES]) for one, found in scores.values.items()}
        write_json(stored, known)
    return known


def as_table(found: dict[str, tuple[int, list[float]]]) -> str:
    lines = ["| method | passes | insertion − deletion | above occlusion |", "|---|---:|---|---|"]
    reference = found[REFERENCE][1]
    for name, (passes, values) in sorted(found.items(), key=lambda item: (item[1][0], item[0])):
        here = bootstrap(values)
        difference = paired(values, reference) if len(values) == len(reference) else None
        above = "–" if difference is None else "{:+.3f} [{:+.3f}, {:+.3f}]".format(*difference)
        lines.append(f"| `{name}` | {passes} | {here.mean:.3f} [{here.low:.3f}, {here.high:.3f}] | {above} |")
    return "\n".join(lines)


if __name__ == "__main__":
    tyro.cli(main)
