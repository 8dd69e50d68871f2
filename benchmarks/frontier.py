"""How faithful a map is for how many passes: the methods beside occlusion, over one or several runs and many pictures.

    python benchmarks/frontier.py runs/frontier/0 runs/frontier/1 runs/frontier/2 --train-recipe quick
    python benchmarks/frontier.py runs/lite0 --data pets --split val --portions 8 --channels-last --chart frontier.png

With --train-recipe a run folder that does not exist is trained first: a small PaCa on the embedded shapes by this
recipe, one seed a folder. A run without an explainer is taught one, on pictures of the train split, and the time that
takes is told. Values are kept in each run folder, so that the command can be interrupted and given again. It prints a
Markdown table: means over runs and pictures, 95 % intervals of a bootstrap that draws pictures, and the difference to
occlusion on the same pictures; and for each budget whether the best method within it reaches occlusion.
"""

import json
import platform
from pathlib import Path
from typing import Any

import torch
import tyro

from vitreous.attribution.catalogue import find_method
from vitreous.attribution.learned import Learned
from vitreous.data.source import open_data
from vitreous.explanations.dataset import selection
from vitreous.explanations.scores import class_batches
from vitreous.faithfulness.curves import PORTIONS
from vitreous.faithfulness.intervals import paired
from vitreous.faithfulness.scoring import DECIDES, MethodScores, score_methods
from vitreous.files.storage import write_json
from vitreous.reports.frontier import draw_frontier
from vitreous.runs.model_folder import load_classifier
from vitreous.score import Lessons, learn_for
from vitreous.train import train

SMALL = "dims=(48,96) depths=(1,2) heads=(1,3) clusters=49 recluster=0 mlp_ratios=(2,4) stem_stride=4"
REFERENCE = "occlusion"
METHODS = (
    REFERENCE, "learned", "learned_contrast", "grad_cam", "input_gradient", "gradient_contrast", "gradient_contrast_3",
    "refined_learned_7", "refined_mask_34", "refined_learned", "refined_mask",
)  # fmt: skip
BUDGETS, MARGIN = (1, 3, 10, 50), 0.02


def main(
    runs: tuple[Path, ...],
    /,
    data: str = "shapes",
    split: str = "test",
    images: int = 200,
    method: tuple[str, ...] = METHODS,
    portions: int = PORTIONS,
    train_recipe: str | None = None,
    epochs: int = 6,
    channels_last: bool = False,
    chart: Path | None = None,
) -> None:
    torch.set_num_threads(1)
    together = MethodScores()
    for seed, run in enumerate(runs):
        if train_recipe is not None and not run.exists():
            settings = dict(recipe=train_recipe, epochs=epochs, model_args=tuple(SMALL.split()))
            train("paca_b0", "shapes", out=run, seed=seed, workers=0, device="cpu", **settings)
        for name, known in measure(run, data, split, images, method, portions, channels_last).items():
            together.values.setdefault(name, {DECIDES: []})[DECIDES].extend(known["values"])
            together.passes[name] = known["passes"]
            together.controls += (name,) if known["control"] and name not in together.controls else ()
    print(as_table(together))
    print(reached(together))
    print(
        f"{len(runs)} runs, {images} pictures of {Path(data).name} ({split}) each, {portions} portions; "
        f"{platform.machine()}, torch {torch.__version__}"
    )
    if chart is not None:
        model = load_classifier(runs[0], size=None, device="cpu").name
        heading = f"{model}: {len(together.of(REFERENCE)[DECIDES])} pictures of {Path(data).name}"
        draw_frontier(together, heading=heading, also=(REFERENCE,)).save(chart)


def measure(
    run: Path, data: str, split: str, images: int, methods: tuple[str, ...], portions: int, channels_last: bool
) -> dict[str, Any]:
    """Passes and values over the pictures, by method; those that are stored are not measured again."""
    stored = run / f"frontier_{split}_{images}_{portions}.json"
    known = json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else {}
    trained = load_classifier(run, size=None, device="cpu")
    if channels_last:
        trained.model.to(memory_format=torch.channels_last)
    pictures = open_data(data, split, size=trained.preprocess.size)
    if "learned" in methods and Learned().missing(trained.model):
        learn_for(str(run), trained, data, pictures, limit=images, follow=False, lessons=Lessons())
    wanted = [name for name in methods if name not in known]
    if wanted:
        scores = score_methods(
            trained.model,
            class_batches(trained, pictures, selection(len(pictures), images), 20),
            methods=[find_method(name, trained.model) for name in wanted],
            fills=("blur",),
            portions=portions,
            sanity=0,
        )
        known |= {
            name: dict(passes=scores.passes[name], control=name in scores.controls, values=found[DECIDES])
            for name, found in scores.values.items()
        }
        write_json(stored, known)
    return known


def as_table(scores: MethodScores) -> str:
    lines = ["| method | passes | insertion − deletion | above occlusion |", "|---|---:|---|---|"]
    for name in sorted(scores.values, key=lambda name: (scores.passes[name], name)):
        here = scores.interval(name)
        lines.append(
            f"| `{name}` | {scores.passes[name]} | {here.mean:.3f} [{here.low:.3f}, {here.high:.3f}] | "
            f"{above_reference(scores, name)} |"
        )
    return "\n".join([*lines, ""])


def reached(scores: MethodScores) -> str:
    """Of each budget the best method, and whether it is at most MARGIN below the reference."""
    lines = []
    for budget in BUDGETS:
        best = scores.best(budget)
        enough = scores.against(best, REFERENCE).mean >= -MARGIN
        lines.append(f"{budget} passes: {best} {above_reference(scores, best)}, {'reached' if enough else 'missed'}")
    return "\n".join([*lines, ""])


def above_reference(scores: MethodScores, name: str) -> str:
    if len(scores.of(name)[DECIDES]) != len(scores.of(REFERENCE)[DECIDES]):
        return "–"
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*paired(scores.of(name)[DECIDES], scores.of(REFERENCE)[DECIDES]))


if __name__ == "__main__":
    tyro.cli(main)
