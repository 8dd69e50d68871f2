"""What the trainer and the evaluator need to know about a task, and nothing else."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from PIL import Image
from torch import Tensor, nn

from vitreous.data.loader import stack
from vitreous.data.source import ImageSet
from vitreous.errors import InputError

TASKS = ("classify",)  # each is a module of this folder whose TASK is a Task

Targets = dict[str, Tensor]
Prediction = dict[str, Tensor]  # the targets' keys plus "scores"


class Metric(Protocol):
    """Sums and counts only, so that parts of the data can be scored apart (on several ranks) and merged."""

    def update(self, predictions: list[Prediction], targets: Targets) -> None: ...
    def merge(self, other: Self) -> None: ...
    def compute(self) -> dict[str, float]: ...


class Assessment(NamedTuple):
    losses: dict[str, Tensor]  # may be empty: not every model gives losses at evaluation
    predictions: list[Prediction]


class Task(ABC):
    """One kind of answer about an image. Subclasses write the abstract methods; the rest are hooks."""

    main_metric: str  # larger is better; decides which weights are `best`

    def __init__(self, classes: tuple[str, ...]) -> None:
        self.classes = classes

    def model(self, backbone: nn.Module) -> nn.Module:
        """The trained module: the backbone itself, or the backbone with a head on top."""
        return backbone

    @abstractmethod
    def dataset(self, images: ImageSet, view: Callable[[Image.Image], Tensor]) -> Any:
        """Map-style (image tensor, target) pairs; `view` turns a picture into a tensor."""

    @abstractmethod
    def losses(self, model: nn.Module, images: Tensor, targets: Targets) -> dict[str, Tensor]:
        """Named terms, each a mean over the images; their sum is minimised."""

    @abstractmethod
    def predict(self, model: nn.Module, images: Tensor) -> list[Prediction]:
        """One prediction for each image."""

    @abstractmethod
    def metric(self) -> Metric:
        """A fresh counter of right and wrong answers."""

    def examination(self, worst: int) -> Metric:
        """The same and more, for a thorough evaluation that also keeps the `worst` mistakes."""
        return self.metric()

    def assess(self, model: nn.Module, images: Tensor, targets: Targets) -> Assessment:
        """Losses and predictions of an evaluation batch; override when one forward pass gives both."""
        return Assessment({}, self.predict(model, images))

    def collate(self, samples: list[Any]) -> tuple[Any, Any]:
        """Samples to one batch."""
        return stack(samples)

    def augment_batch(self, images: Tensor, targets: Targets, rng: np.random.Generator) -> tuple[Tensor, Targets]:
        """Random changes that need the whole batch."""
        return images, targets

    def after_step(self, model: nn.Module, progress: float) -> None:  # noqa: B027  (a hook, not a duty)
        """Called after each optimiser step; `progress` runs from 0 to 1."""


def load_task(name: str) -> type[Task]:
    if name not in TASKS:
        raise InputError(f"unknown task '{name}'; accepted: {', '.join(TASKS)}")
    return import_module(f"vitreous.tasks.{name}").TASK
