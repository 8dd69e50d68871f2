"""A PaCa small enough for tests that need a model folder but not a good model."""

from pathlib import Path

import timm
import torch

import vitreous  # noqa: F401  (registers the models)
from vitreous.data.shapes import CATEGORIES
from vitreous.data.transforms import Preprocess
from vitreous.training.model_folder import save_model

MODEL_ARGS = dict(dims=(8, 16, 24, 32), depths=(1, 1, 1, 1), heads=(1, 2, 3, 4), clusters=(6, 6, 6, 0))


def save_tiny_model(folder: Path, *, name: str = "paca_tiny", task: str = "classify", **changes: object) -> str:
    torch.manual_seed(0)
    arguments = MODEL_ARGS | changes
    classes = tuple(CATEGORIES)
    model = timm.create_model(name, num_classes=len(classes), **arguments)
    preprocess = Preprocess(size=(64, 64))
    save_model(folder, model, name=name, model_args=arguments, task=task, classes=classes, preprocess=preprocess)
    return str(folder)
