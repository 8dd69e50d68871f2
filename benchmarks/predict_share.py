"""Share of the network in the time of `vitreous predict`, for every head.

    python benchmarks/predict_share.py                           # paca_b0 and the papers' heads; 80 classes, or 150
    python benchmarks/predict_share.py --small                   # a small backbone and narrow heads; 20 classes
    python benchmarks/predict_share.py --heads fcos maskrcnn --rounds 9

Processor time of one thread, the median of the rounds after one to warm up, of a JPEG of 640x640 pixels:

- picture: reading the file, resizing, to a normalised batch
- network: every layer of backbone, neck and head, among them the pooling of regions
- choosing: the rest of what turns images into answers: anchors, scores, boxes, non-maximum suppression, masks in pixels
  of the picture, heat maps to keypoints, logits at the size of the picture
- writing: answers as rows of COCO's result format, and these as JSON
- drawing: with --out alone, the picture with what was found, as a PNG. It is no part of the share.

Weights are random, but answers are not few: the score threshold is where a thousand boxes pass it, of which 100 (the
default) are left in the end. A trained model has fewer in most pictures, and less to choose from.
"""

import inspect
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from PIL import Image
from torch import Tensor, nn

from vitreous.data.pictures import find_pictures
from vitreous.data.transforms import Preprocess
from vitreous.heads.boxes import Detector
from vitreous.heads.detect import DETECTORS
from vitreous.heads.segment import SEGMENTERS
from vitreous.registry import create_model
from vitreous.runs.trained_model import TrainedModel, predict_pictures
from vitreous.tasks.base import Inference, Task, load_task

SIDE, CANDIDATES = 640, 1000
PARTS = ("picture", "network", "choosing", "writing", "drawing")
BACKBONE = dict(dims=(16, 48, 96, 128), depths=(1, 2, 2, 1), heads=(1, 2, 3, 4), clusters=(49, 49, 0, 0))
REGIONS, DENSE, MAPS = (
    dict(channels=64, hidden=256, convs=2, norm="gn"),
    dict(channels=64, convs=2, norm="gn"),
    dict(width=64),
)
NARROW: dict[str, dict[str, Any]] = {
    "maskrcnn": REGIONS,
    "fasterrcnn": REGIONS,
    "retinanet": DENSE,
    "fcos": DENSE,
    "atss": DENSE,
    "ssd": dict(channels=64),
    "ssdlite": dict(channels=64),
    "sparsercnn": dict(channels=64, rounds=3, inner=16, hidden=256),
    "fpn": dict(pyramid=64, width=64),
    "upernet": MAPS,
    "paca": MAPS,
    "heatmaps": MAPS,
}
TASKS = dict.fromkeys(DETECTORS, "detect") | dict.fromkeys(SEGMENTERS, "segment") | {"heatmaps": "keypoints"}


class Stopwatch:
    """Processor time within the watched calls; nested calls count once."""

    def __init__(self) -> None:
        self.seconds, self._depth, self._start = 0.0, 0, 0.0

    def enter(self, *_: Any) -> None:
        if self._depth == 0:
            self._start = time.process_time()
        self._depth += 1

    def leave(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.process_time() - self._start


def build(head: str, small: bool) -> tuple[TrainedModel, Task]:
    name = TASKS[head]
    count = 20 if small else {"detect": 80, "segment": 150, "keypoints": 1}[name]
    classes = tuple(f"class {number}" for number in range(count))
    arguments: dict[str, Any] = {
        "detect": dict(short=SIDE, longest=SIDE),
        "segment": dict(short=SIDE),
        "keypoints": dict(crop=(SIDE, SIDE), names=tuple(f"joint {number}" for number in range(17))),
    }[name]
    arguments |= dict(head=head, head_args=NARROW[head] if small else {})
    task = load_task(name)(classes, **arguments)
    if "min_score" in task.inferences:
        task.using(Inference(min_score=0.0))
    torch.manual_seed(0)
    model = task.model(create_model("paca_b0", features_only=True, **(BACKBONE if small else {}))).eval()
    return TrainedModel(model, "paca_b0", name, classes, Preprocess((SIDE, SIDE)), arguments), task


def answer_often(model: Detector, images: Tensor) -> None:
    """Set the score threshold so that `CANDIDATES` boxes pass it."""
    module: Any = inspect.getmodule(type(model).predictions)
    best, seen = module.best, []

    def noted(scores: Tensor, selection: Any) -> Any:
        seen.append(scores.flatten())
        return best(scores, selection)

    module.best = noted
    try:
        model(images)
    finally:
        module.best = best
    scores = torch.cat(seen)
    score = scores.topk(min(CANDIDATES, len(scores))).values[-1].item()
    model.selection = model.selection._replace(score=score)  # type: ignore[operator,union-attr,assignment]


def measure(trained: TrainedModel, task: Any, file: Path, rounds: int) -> dict[str, float]:
    """Milliseconds of each part."""
    network = Stopwatch()
    for module in list(trained.model.modules())[1:]:  # all but the whole model, which selects
        module.register_forward_pre_hook(network.enter)
        module.register_forward_hook(network.leave)
    answering, predict = Stopwatch(), task.predict

    def watched(model: nn.Module, images: Tensor, targets: Any) -> Any:
        answering.enter()
        found = predict(model, images, targets)
        answering.leave()
        return found

    task.predict = watched
    (picture,) = find_pictures((str(file),), size=(SIDE, SIDE))
    times: dict[str, list[float]] = {part: [] for part in PARTS}
    for number in range(rounds + 1):
        network.seconds = answering.seconds = 0.0
        start = time.process_time()
        image = picture.load()
        (found,) = predict_pictures(trained, task, [image], [None], 1)
        asked = time.process_time()
        json.dumps(found.to_dict())
        written = time.process_time()
        found.draw(caption=False).save(file.with_suffix(".png"))
        done = time.process_time()
        if number == 0:
            continue
        parts = (
            asked - start - answering.seconds,
            network.seconds,
            answering.seconds - network.seconds,
            written - asked,
            done - written,
        )
        for part, seconds in zip(PARTS, parts, strict=True):
            times[part].append(1e3 * seconds)
    return {part: statistics.median(values) for part, values in times.items()}


def main(heads: tuple[str, ...] = tuple(TASKS), small: bool = False, rounds: int = 3) -> None:
    torch.set_num_threads(1)
    print(f"{SIDE}x{SIDE}, batch 1, torch {torch.__version__}; processor time in ms, median of {rounds}")
    print("| head | network | picture | choosing | writing | share of the network | drawing |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "picture.jpg"
        coarse = np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)
        Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(file, quality=90)
        for head in heads:
            trained, task = build(head, small)
            if isinstance(trained.model, Detector):
                with torch.inference_mode():
                    answer_often(trained.model, torch.randn(1, 3, SIDE, SIDE))
            found = measure(trained, task, file, rounds)
            whole = sum(found.values()) - found["drawing"]
            cells = (f"{found[part]:.0f}" for part in ("network", "picture", "choosing", "writing"))
            print(
                f"| `{head}` | {' | '.join(cells)} | {found['network'] / whole:.0%} | {found['drawing']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    tyro.cli(main)
