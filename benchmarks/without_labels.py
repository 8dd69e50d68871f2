"""What learning without labels gives, and what it costs.

    python benchmarks/without_labels.py shapes --out runs/without_labels
    python benchmarks/without_labels.py labels --out runs/without_labels
    python benchmarks/without_labels.py pets --data pets --out runs/without_labels
    python benchmarks/without_labels.py step
    python benchmarks/without_labels.py neighbours

shapes      `quick_dino` on the embedded shapes at 64 x 64: k-NN top-1 of random weights and after training, and how
            long it took
labels      a classifier from these weights and one from scratch, on 5 % of the labels, with the same steps
pets        the same as `shapes` on a folder of photographs
step        time of a step beside the sum of its parts: making views, student forward and backward, teacher forward
neighbours  50,000 x 10,000 features of 384 numbers: all of k-NN beside a blocked product with top-k; of ImageNet's
            size with --pictures 1281167 --queries 50000 --repeats 1

Runs and figures that exist are kept in --out, so that a command that was interrupted can be given again.
"""

import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import timm
import torch
import tyro

from vitreous.data.loader import seed_everything
from vitreous.data.multi_crop import UnlabelledViews
from vitreous.data.source import open_data
from vitreous.data.transforms import Preprocess
from vitreous.evaluate import evaluate
from vitreous.files.storage import write_json
from vitreous.heads.dino import SelfDistillation, cross_view_loss
from vitreous.metrics.neighbours import BANK_BLOCK, QUERY_BLOCK, NeighbourAccuracy, nearest_rows, unit_rows_
from vitreous.models.pooled import forward_pooled
from vitreous.runs.model_folder import save_model
from vitreous.runtime.device import keep_freed_memory
from vitreous.tasks.dino import DinoTask
from vitreous.train import train
from vitreous.training.recipe import with_recipe

MODELS = ("xcit_nano_12_p8", "paca_b0")
LABELLED = 0.05
FINE_LR = 3e-4  # the recipe's rate, which is for fresh weights, ends at chance from learned ones


def main(
    part: Literal["shapes", "labels", "pets", "step", "neighbours"],
    /,
    out: Path = Path("runs/without_labels"),
    models: tuple[str, ...] = MODELS,
    data: str = "pets",
    epochs: int | None = None,
    train_count: int | None = None,
    val_count: int = 1000,
    label_epochs: int = 60,
    seeds: int = 3,
    threads: int = 2,
    workers: int = 1,
    repeats: int = 7,
    pictures: int = 50_000,
    queries: int = 10_000,
) -> None:
    torch.set_num_threads(threads)
    given = {"epochs": epochs, "train_count": train_count, "workers": workers}
    options = {name: value for name, value in given.items() if value is not None}
    if part == "step":
        for model in models:
            measure_step(model, repeats)
    elif part == "neighbours":
        measure_neighbours(pictures, queries, repeats)
    else:
        for model in models:
            if part == "labels":
                measure_labels(out, model, val_count, label_epochs, seeds, train_count or 4000, workers)
            else:
                measure_learning(out, model, "shapes" if part == "shapes" else data, val_count, options)


# ---- what is learned ----------------------------------------------------------------------------------------------


def kept(file: Path, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a file holds, or what is measured and then written to it."""
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, measure())
    return json.loads(file.read_text())


def measure_learning(out: Path, model: str, data: str, val_count: int, options: dict[str, Any]) -> None:
    if data != "shapes":
        options = {name: value for name, value in options.items() if name != "train_count"}
    name = f"{model}-{Path(data).name}"
    settings = with_recipe(model, data, recipe="quick_dino", **options)
    counts = {"count": val_count, "train_count": settings.train_count} if data == "shapes" else {}
    conditions: dict[str, Any] = counts | {"knn": True, "linear": True, "workers": settings.workers, "device": "cpu"}

    def before() -> dict[str, Any]:
        torch.manual_seed(settings.seed)
        arguments = settings.model_arguments()
        about = dict(
            name=model, model_args=arguments, task="dino", classes=(), preprocess=Preprocess((settings.size,) * 2)
        )
        save_model(out / f"{name}-random", timm.create_model(model, num_classes=0, **arguments), **about)
        return evaluate(str(out / f"{name}-random"), data, **conditions)

    first = kept(out / f"{name}-random.json", before)
    run = train(model, data, recipe="quick_dino", out=out / name, device="cpu", knn_every=0, **options)
    seconds = sum(line["seconds"] for line in last_lines(run / "metrics.jsonl"))
    last = kept(out / f"{name}.json", lambda: evaluate(str(run), data, **conditions))
    for figure in [figure for figure in first if figure.startswith(("knn", "linear")) and "top5" not in figure]:
        risen = 100 * (last[figure] - first[figure])
        print(
            f"{model} on {data}: {figure} {first[figure]:.1%} -> {last[figure]:.1%} ({risen:+.1f} points)", flush=True
        )
    print(f"{model} on {data}: trained in {seconds / 60:.1f} minutes", flush=True)


def last_lines(metrics: Path) -> list[dict[str, Any]]:
    """The last line of each start of a run: `seconds` counts from there."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [
        one
        for one, after in zip(lines, [*lines[1:], {"seconds": -1}], strict=True)
        if after["seconds"] < one["seconds"]
    ]


def measure_labels(out: Path, model: str, val_count: int, epochs: int, seeds: int, pictures: int, workers: int) -> None:
    start = out / f"{model}-shapes"
    rows: dict[str, list[float]] = {}
    for seed in range(seeds):
        for name, start_options in (("from scratch", {}), ("from DINO", {"weights": str(start), "lr": FINE_LR})):
            folder = out / f"{model}-{name.replace(' ', '-')}-{seed}"
            options: dict[str, Any] = dict(train_count=max(10, round(LABELLED * pictures)), val_count=val_count)
            options |= dict(epochs=epochs, seed=seed, workers=workers, device="cpu", out=folder)
            run = train(model, "shapes", recipe="quick", **options, **start_options)
            lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            rows.setdefault(name, []).append([line for line in lines if line["split"] == "val"][-1]["top1"])
    for name, values in rows.items():
        spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
        print(f"{model}, {LABELLED:.0%} of the labels, {name}: {100 * statistics.mean(values):.1f}{spread}", flush=True)


# ---- what it costs ------------------------------------------------------------------------------------------------


def medians_in_turns(works: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Seconds of each, measured one after the other in every round, after one that does not count."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats + 1):
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            found[name].append(time.perf_counter() - begun)
    return {name: statistics.median(seconds[1:]) for name, seconds in found.items()}


def measure_step(model: str, repeats: int) -> None:
    keep_freed_memory(torch.device("cpu"))  # as `vitreous train` does
    settings = with_recipe(model, "shapes", recipe="quick_dino")
    images = open_data("shapes", "train", size=(settings.size,) * 2, count=settings.batch_size, targets="pictures")
    task = DinoTask.from_settings(settings, images)
    preprocess = Preprocess((settings.size,) * 2)
    samples = UnlabelledViews(images, task.training_view(preprocess, settings))
    seed_everything(0)
    learner = task.learner(timm.create_model(model, num_classes=0, **settings.model_arguments()))
    assert isinstance(learner, SelfDistillation)
    optimizer = torch.optim.AdamW([p for p in learner.parameters() if p.requires_grad], lr=1e-4, fused=True)

    def make() -> list[torch.Tensor]:
        return [preprocess.normalise_bytes(size) for size in task.collate([samples[i] for i in range(len(images))])[0]]

    views = make()

    def whole() -> None:
        optimizer.zero_grad()
        cross_view_loss(learner(make(), len(images)), 0.1, 0.04).loss.backward()
        optimizer.step()
        learner.follow(0.996)
        learner.move_centre(0.9)

    def student() -> None:
        optimizer.zero_grad()
        seen = torch.cat([forward_pooled(learner.student.backbone, size) for size in views])
        learner.student.head(seen).cosines.logsumexp(1).sum().backward()
        optimizer.step()

    def teacher() -> None:
        with torch.no_grad():
            learner.teacher.head(forward_pooled(learner.teacher.backbone, views[0][: 2 * len(images)]))

    parts = {"views": make, "student": student, "teacher": teacher}
    taken = medians_in_turns({**parts, "step": whole}, repeats)
    step, seconds = taken.pop("step"), taken
    total = sum(seconds.values())
    told = ", ".join(f"{name} {1000 * value:.0f} ms" for name, value in seconds.items())
    print(
        f"{model}: a step of {len(images)} pictures {1000 * step:.0f} ms, {step / total:.2f} x its parts ({told})",
        flush=True,
    )


def measure_neighbours(pictures: int, queries: int, repeats: int) -> None:
    torch.manual_seed(0)
    bank, rows = unit_rows_(torch.randn(pictures, 384)), unit_rows_(torch.randn(queries, 384))
    labels, truth = torch.randint(1000, (pictures,)), torch.randint(1000, (queries,))

    def plain() -> None:
        for some in rows.split(QUERY_BLOCK):
            for part in bank.split(BANK_BLOCK):
                (some @ part.T).topk(200, dim=1)

    def ours() -> None:
        NeighbourAccuracy(1000).update(nearest_rows(bank, labels, rows, 200), truth)

    least, taken = medians_in_turns({"plain": plain, "ours": ours}, repeats).values()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{pictures} x {queries}: {taken:.2f} s, {taken / least:.2f} x a blocked product with top-k ({least:.2f} s)")
    print(f"the process, with its libraries and the features, took {peak:.2f} GB at most")


if __name__ == "__main__":
    tyro.cli(main)
