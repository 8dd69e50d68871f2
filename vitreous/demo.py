"""Train, evaluate and explain a small PaCa on the embedded data: the whole project in a few minutes.

vitreous demo
vitreous demo --task detect
"""

import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vitreous.errors import InputError
from vitreous.evaluate import evaluate
from vitreous.explain import explain
from vitreous.files.storage import json_text
from vitreous.files.writing import replace_content
from vitreous.metrics.figures import figure_text
from vitreous.tasks.base import load_task
from vitreous.train import train

# Small enough for two CPU cores. Only the first two stages have clusters: the second is the last one whose grid
# (16 x 16 at 64 pixels) is fine enough to show an object, and `explain` looks at the last stage with clusters.
MODEL = "paca_tiny"
DEMO_JSON = "demo.json"  # in the run folder: its figures
MODEL_ARGS = ("dims=(16,48,96,128)", "heads=(1,2,3,4)", "depths=(1,2,2,1)", "clusters=(32,32,0,0)")


class Lesson(NamedTuple):
    """What a model learns in minutes of two cores."""

    what: str  # completes "train a small PaCa to …"
    size: int
    pictures: int  # to learn from
    epochs: int
    settings: dict[str, Any]  # of `vitreous train`


CLASSIFY = dict(
    model_args=(*MODEL_ARGS, "stem_stride=2"),
    batch_size=32,
    lr=1.5e-3,
    warmup_epochs=0.3,
    label_smoothing=0.05,
    scale=1.0,
    drop_path=0.0,
)
DENSE = dict(model_args=MODEL_ARGS, warmup_epochs=0.2, ema=0.99)  # an average over more steps ends before it is good
LESSONS = {
    "classify": Lesson("tell shapes apart", 64, 4000, 4, CLASSIFY),
    "detect": Lesson("find shapes", 96, 2400, 2, DENSE | dict(recipe="finetune_detect", batch_size=8)),
    "segment": Lesson(
        "outline shapes", 96, 3000, 2, DENSE | dict(recipe="finetune_segment", rescale=(1.0, 1.0), lr=2.5e-3)
    ),
    "keypoints": Lesson("find the points of shapes", 96, 3000, 2, DENSE | dict(recipe="finetune_keypoints")),
}


def demo(
    *,
    task: Literal["classify", "detect", "segment", "keypoints"] = "classify",
    out: Path | None = None,
    epochs: int | None = None,
    train_count: int | None = None,
    test_count: int = 1000,
    size: int | None = None,
    explained: int = 8,
    workers: int = 1,
    device: str = "auto",
) -> Path:
    """Train a small PaCa on the embedded shapes, test it on images it has not seen, and explain some of them.

    Takes one to four minutes on two CPU cores and needs no download. Started again, it keeps the trained model and
    rewrites the explanation.

    Examples:
        vitreous demo
        vitreous demo --task detect
        vitreous demo --out runs/longer --epochs 20

    Args:
        task: What it learns: the class of the shapes, their boxes, a class for every pixel, or their keypoints.
        out: Run folder; the explanation goes to its folder `explanation`. Default: runs/demo, or runs/demo_TASK.
        epochs: Passes over the training images; default: 4, and 2 for other tasks than classification.
        train_count: Number of training images; default: 4000, and 2400 (detect) or 3000 for other tasks.
        test_count: Number of held-out images.
        size: Height and width of the images; default: 64, and 96 for other tasks than classification.
        explained: Number of held-out images to explain.
        workers: Processes that draw images; 0 = the main one does it.
        device: cpu, cuda, cuda:1, mps, or auto.

    Returns:
        The path of the report.
    """
    if task not in LESSONS:
        raise InputError(f"unknown task '{task}'; accepted: {', '.join(LESSONS)}")
    lesson, start = LESSONS[task], time.monotonic()
    out = Path("runs/demo" if task == "classify" else f"runs/demo_{task}") if out is None else out
    pictures = lesson.pictures if train_count is None else train_count
    headline(f"1/3  train a small PaCa to {lesson.what}, on {pictures} embedded images")
    run = train(
        MODEL,
        "shapes",
        task=task,
        out=out,
        epochs=epochs or lesson.epochs,
        train_count=pictures,
        val_count=min(test_count, 500 if task == "classify" else 200),
        workers=workers,
        device=device,
        amp="auto",
        **sized(task, size or lesson.size),
        **lesson.settings,
    )
    headline(f"2/3  test it on {test_count} images it has not seen")
    figures = evaluate(str(run), "shapes", split="test", count=test_count, workers=workers, device=device)
    headline(f"3/3  explain {explained} of them")
    last = max(explained, 1) - 1
    report = explain(str(run), (f"shapes:test:0-{last}",), out=out / "explanation", device=device)
    metric = load_task(task).main_metric
    result = f"{'accuracy' if metric == 'top1' else metric:<10} {figure_text(metric, figures[metric])}"
    told = {"task": task, "run": str(run), "images": test_count, "figures": figures}
    replace_content(run / DEMO_JSON, json_text(told).encode())
    print(farewell(run, report, result, test_count, time.monotonic() - start))
    return report


def sized(task: str, side: int) -> dict[str, Any]:
    """What makes images of one size of the scenes."""
    crop = dict(crop=(side, side)) if task in ("segment", "keypoints") else {}
    short = dict(short=(side,), longest=side) if task == "detect" else dict(short=(side,)) if task == "segment" else {}
    return {"size": side, **crop, **short}


def headline(text: str) -> None:
    print(f"\n{text}\n{'─' * len(text)}", flush=True)


def program() -> str:
    """The command as this shell finds it: by its path where no environment is active, as after `make demo`."""
    installed = Path(sys.prefix) / "bin" / "vitreous"
    return "vitreous" if shutil.which("vitreous") or not installed.exists() else shlex.quote(os.path.relpath(installed))


def farewell(run: Path, report: Path, result: str, count: int, seconds: float) -> str:
    """The results, and how to go on: with the explorer, and with pictures of one's own."""
    command = program()
    return f"""
done in {seconds:.0f} s

  {result} on {count} held-out images
  model      {run}
  report     {report}   (open it in a browser)

Take it apart, and watch its answer change:

  next: {command} serve {run}

Photographs of your own, with a public model that knows ImageNet's classes, or with one that learns yours from folders
photos/CLASS/:

  {command} explain photo.jpg
  {command} train photos"""
