"""What the trainer and the evaluator need to know about a task, and nothing else."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from PIL import Image
from torch import Tensor, nn

import vitreous.tasks
from vitreous.data.detector_boxes import Found
from vitreous.data.joint import JointViews, collate_dense
from vitreous.data.loader import stack
from vitreous.data.source import ImageSet
from vitreous.data.targets import Wording
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError

Targets = dict[str, Any]  # tensors, or lists of them where images differ in what they hold
Prediction = dict[str, Any]  # the targets' keys plus "scores"
View = Callable[..., Any]  # of a picture alone, or of a picture and its target


class Metric(Protocol):
    """Sums and counts only, so that parts of the data can be scored apart (on several ranks) and merged."""

    def update(self, predictions: list[Prediction], targets: Targets) -> None: ...
    def merge(self, other: Self) -> None: ...
    def compute(self) -> dict[str, float]: ...


class Assessment(NamedTuple):
    losses: dict[str, Tensor]  # may be empty: not every model gives losses at evaluation
    predictions: list[Prediction]


@dataclass(frozen=True)
class Inference:
    """Ways to get more out of a model when it is used, at the price of time."""

    flip: bool = False  # the mean with the answer about the mirrored picture
    scales: tuple[float, ...] = ()  # the mean over the picture at these scales
    slide: bool = False  # windows of the size of the training crops, instead of the whole picture at once


class Task(ABC):
    """One kind of answer about an image. Subclasses write the abstract methods; the rest are hooks."""

    name: str  # on the command line, and of its file in this folder
    purpose: str  # completes "cannot use data X to ..."
    targets: str  # the kind that it learns from, one of TARGET_KINDS; any data that offer it will do
    settings: frozenset[str] = frozenset()  # of TrainSettings, those that mean something for some tasks only
    main_metric: str  # larger is better; decides which weights are `best`
    shown: tuple[str, ...] = ()  # the figures in the table of epochs; all if none is named
    heads: tuple[str, ...] = ()  # what can stand on a backbone; none: the model is whole
    inferences: tuple[str, ...] = ()  # fields of `Inference` that it can make use of
    inference = Inference()

    def __init__(self, classes: tuple[str, ...]) -> None:
        self.classes = classes

    @classmethod
    def wording(cls) -> Wording:
        """How errors about unfit data speak of this task and of the others."""
        return Wording(cls.purpose, task_options)

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: Any, images: ImageSet) -> Self:
        """The task as the settings of `vitreous train` ask for it, for these images."""

    def arguments(self) -> dict[str, Any]:
        """Besides the classes, what it takes to build the task again for a model that was trained for it."""
        return {}

    def reading(self) -> dict[str, Any]:
        """How the files of the data it was trained on are to be understood, as arguments of `open_data`."""
        return {}

    def resized(self, size: int) -> Self:
        """The task for images of another size."""
        return self

    def input_size(self, preprocess: Preprocess) -> tuple[int, int]:
        """Height and width of what the model sees; where they vary, the shorter and the longest side."""
        return preprocess.size

    def using(self, inference: Inference) -> Self:
        """The same task, which asks its model more than once for an answer."""
        for entry in fields(inference):
            if getattr(inference, entry.name) and entry.name not in self.inferences:
                accepted = ", ".join(f"--{name}" for name in self.inferences) or "nothing of this kind"
                raise InputError(f"--{entry.name} given, which this model's task cannot use; accepted: {accepted}")
        self.inference = inference
        return self

    def model(self, backbone: nn.Module) -> nn.Module:
        """The trained module: the backbone itself, or the backbone with a head on top."""
        return backbone

    @abstractmethod
    def training_view(self, preprocess: Preprocess, settings: Any) -> View:
        """How pictures are looked at in training, as the settings of `vitreous train` ask for it."""

    @abstractmethod
    def evaluation_view(self, preprocess: Preprocess) -> View:
        """How pictures are looked at in evaluation."""

    @abstractmethod
    def dataset(self, images: ImageSet, view: View) -> Any:
        """Map-style (image tensor, target) pairs, seen through a view."""

    @abstractmethod
    def losses(self, model: nn.Module, images: Tensor, targets: Targets) -> dict[str, Tensor]:
        """Named terms, each a mean over the images; their sum is minimised."""

    @abstractmethod
    def predict(self, model: nn.Module, images: Tensor, targets: Targets) -> list[Prediction]:
        """One prediction for each image; of the targets it uses what is known of any picture, such as its size."""

    @abstractmethod
    def metric(self) -> Metric:
        """A fresh counter of right and wrong answers."""

    def examination(self, worst: int) -> Metric:
        """The same and more, for a thorough evaluation that also keeps the `worst` mistakes."""
        return self.metric()

    def assess(self, model: nn.Module, images: Tensor, targets: Targets) -> Assessment:
        """Losses and predictions of an evaluation batch; override when one forward pass gives both."""
        return Assessment({}, self.predict(model, images, targets))

    def truth(self, targets: Targets) -> Targets:
        """What the metric compares predictions with, made of an evaluation batch's targets."""
        return targets

    def collate(self, samples: list[Any]) -> tuple[Any, Any]:
        """Samples to one batch."""
        return stack(samples)

    def augment_batch(self, images: Tensor, targets: Targets, rng: np.random.Generator) -> tuple[Tensor, Targets]:
        """Random changes that need the whole batch."""
        return images, targets

    def after_step(self, model: nn.Module, progress: float) -> None:  # noqa: B027  (a hook, not a duty)
        """Called after each optimiser step; `progress` runs from 0 to 1."""


class WithHead(Task):
    """A task whose model is a head on a backbone, and whose targets lie in the picture."""

    usual_head: str
    settings = frozenset({"head", "head_args", "head_lr"})

    def __init__(self, classes: tuple[str, ...], head: str | None, head_args: Mapping[str, Any] | None) -> None:
        super().__init__(classes)
        if head is not None and head not in self.heads:
            raise InputError(f"unknown head '{head}'; accepted for this task: {', '.join(self.heads)}")
        self.head, self.head_args = head or self.usual_head, dict(head_args or {})
        self.category_ids = tuple(range(1, len(classes) + 1))  # of the classes in result files, unless the data say

    def arguments(self) -> dict[str, Any]:
        return {"head": self.head, "head_args": self.head_args}

    def dataset(self, images: ImageSet, view: View) -> JointViews:
        return JointViews(images, view)

    def collate(self, samples: list[Any]) -> tuple[Any, Any]:
        return collate_dense(samples)

    def losses(self, model: nn.Module, images: Tensor, targets: Targets) -> dict[str, Tensor]:
        return model(images, targets)

    @abstractmethod
    def load_release(self, model: nn.Module, source: Path) -> Any:
        """Fill a model from a file of one of OpenMMLab's toolboxes; returns a report of every tensor."""

    @abstractmethod
    def questions(self, picture: Image.Image, found: Sequence[Found]) -> list[dict[str, Any]]:
        """Targets of samples that ask about a picture of which nothing is known but, at most, where objects are."""

    @abstractmethod
    def rows(self, prediction: Prediction, question: dict[str, Any]) -> list[dict[str, Any]]:
        """A prediction as entries of a COCO result file, but for the number of the picture."""


def load_task(name: str) -> type[Task]:
    tasks = load_tasks()
    if name not in tasks:
        raise InputError(f"unknown task '{name}'; accepted: {', '.join(tasks)}")
    return tasks[name]


def load_tasks() -> dict[str, type[Task]]:
    """Every task by its name: the TASK of each file in this folder, and in those added to `vitreous.tasks.__path__`."""
    modules = [import_module(f"vitreous.tasks.{module.name}") for module in iter_modules(vitreous.tasks.__path__)]
    return {module.TASK.name: module.TASK for module in modules if hasattr(module, "TASK")}


def task_options(kinds: Collection[str]) -> str:
    """What chooses a task that learns from one of these kinds of targets."""
    names = [name for name, task in load_tasks().items() if task.targets in kinds]
    return f"--task {' or '.join(names)}" if names else "a task of your own, as there is none for it"
