"""A PaCa small enough for tests that need a model folder but not a good model."""

from pathlib import Path

import timm
import torch

import vitreous  # noqa: F401  (registers the models)
from vitreous.data.shapes.samples import CATEGORIES
from vitreous.data.transforms import Preprocess
from vitreous.registry import create_model
from vitreous.runs.model_folder import save_model
from vitreous.tasks.base import load_task

MODEL_ARGS = dict(dims=(8, 16, 24, 32), depths=(1, 1, 1, 1), heads=(1, 2, 3, 4), clusters=(6, 6, 6, 0))


def save_tiny_model(folder: Path, *, name: str = "paca_tiny", task: str = "classify", **changes: object) -> str:
    torch.manual_seed(0)
    arguments = MODEL_ARGS | changes
    classes = tuple(CATEGORIES)
    model = timm.create_model(name, num_classes=len(classes), **arguments)
    preprocess = Preprocess(size=(64, 64))
    save_model(folder, model, name=name, model_args=arguments, task=task, classes=classes, preprocess=preprocess)
    return str(folder)


TASK_ARGS = {
    "detect": dict(head="fcos", head_args=dict(channels=16, convs=1, score_threshold=0.0), short=64, longest=128),
    "segment": dict(head="fpn", head_args=dict(pyramid=16, width=16), short=64, crop=(64, 64)),
    "keypoints": dict(head_args=dict(width=16), crop=(64, 64), names=("top", "left", "right")),
}


def save_tiny_dense(
    folder: Path,
    task: str,
    classes: tuple[str, ...],
    *,
    name: str = "paca_tiny",
    backbone: dict | None = None,
    **changes: object,
) -> str:
    """A model that has learned nothing, with weights three times as large as fresh ones, or all its answers were one.

    Its detector is never sure: it starts from one object in a hundred places.
    """
    torch.manual_seed(2)
    arguments = backbone or MODEL_ARGS
    built = load_task(task)(classes, **TASK_ARGS[task] | changes)
    model = built.model(create_model(name, features_only=True, **arguments))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    preprocess, more = Preprocess(size=(64, 64)), built.arguments()
    save_model(folder, model, name=name, model_args=arguments, task=task, classes=classes, preprocess=preprocess,
               task_args=more)  # fmt: skip
    return str(folder)
