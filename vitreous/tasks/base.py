"""What train, evaluate, predict, explain and serve need to know about a task, and nothing else."""

import math
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
from vitreous.attribution.target import Target
from vitreous.data.annotations import OneBoxEach
from vitreous.data.detector_boxes import Found
from vitreous.data.joint import JointViews, collate_dense
from vitreous.data.layouts.base import Wording
from vitreous.data.loader import stack
from vitreous.data.source import ImageSet
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError, nearest
from vitreous.models.pooled import forward_pooled
from vitreous.tasks.findings import FindingChoice, FindingQuery, FindingTruth, FoundTargets, ModelView, Point
from vitreous.tasks.results import MIN_SCORE, PictureResult

Targets = dict[str, Any]  # tensors, or lists of them where images differ in what they hold
Prediction = dict[str, Any]  # the targets' keys plus "scores"
PictureView = Callable[..., Any]  # of a picture alone, or of a picture and its target


class Metric(Protocol):
    """Sums and counts only, so that parts of the data can be scored apart (on several ranks) and merged."""

    def update(self, predictions: list[Prediction], targets: Targets) -> None: ...
    def merge(self, other: Self) -> None: ...
    def compute(self) -> dict[str, float]: ...


class PictureViews(ABC):
    """Samples for a loader: pictures of a set, each seen as a whole through a (possibly random) view."""

    def __init__(self, images: ImageSet, view: PictureView) -> None:
        self.images, self.view = images, view
        self.at_least = getattr(view, "at_least", None)  # a view that shrinks pictures may take them reduced

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Any]]:
        return self.view(self.images.picture(index, at_least=self.at_least)), self.learnt(index)

    @abstractmethod
    def learnt(self, index: int) -> dict[str, Any]:
        """What is learnt from the picture, as `collate` takes it."""


class Moment(NamedTuple):
    """Where a run is. Schedules are functions of it, so that nothing of them needs to be stored."""

    step: int  # optimiser steps taken before this one
    steps: int  # of the whole run
    steps_per_epoch: int

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        return self.step / self.steps

    @property
    def epoch(self) -> float:
        """Epochs behind it, with the part of the current one."""
        return self.step / self.steps_per_epoch


class Assessment(NamedTuple):
    losses: dict[str, Tensor]  # may be empty: not every model gives losses at evaluation
    predictions: list[Prediction]


@dataclass(frozen=True)
class Inference:
    """How a trained model is used. The first three get more out of it, at the price of time."""

    flip: bool = False  # the mean with the answer about the mirrored picture
    scales: tuple[float, ...] = ()  # the mean over the picture at these scales
    slide: bool = False  # windows of the size of the training crops, instead of the whole picture at once
    top_k: int | None = None  # how many classes are told
    min_score: float | None = None  # smallest score of what is shown
    boxes: Any = None  # where a detector found objects


class Task(ABC):
    """One kind of answer about a picture. Subclasses write the abstract methods; the rest are hooks."""

    name: str  # on the command line, and of its file in this folder
    purpose: str  # completes "cannot use data X to ..."
    targets: str  # the kind that it learns from, one of TARGET_KINDS; any data that offer it will do
    settings: frozenset[str] = frozenset()  # of TrainSettings, those that mean something for some tasks only
    like_classification: bool = False  # it takes recipes for classification, without what it has no use for
    main_metric: str  # larger is better; decides which weights are `best`
    shown: tuple[str, ...] = ()  # the figures in the table of epochs; all if none is named
    heads: tuple[str, ...] = ()  # what can be chosen to stand on a backbone
    on_feature_maps: bool = True  # the model is a head on feature maps; False: a backbone with its own classifier
    has_findings: bool = True  # a picture has findings, to be explained one by one; False: it has a class
    query_fields: tuple[str, ...] = ("finding",)  # fields of `FindingQuery` by which it chooses what is explained
    inferences: tuple[str, ...] = ()  # fields of `Inference` that it can make use of
    inference = Inference()
    batch_size: int = 1  # of predictions, unless another is asked for: pictures of one size can be more
    one_class_remedy: str = ""  # what to do about data of a single class, where every answer would be right
    category_ids: tuple[int, ...] = ()  # of the classes in COCO's result files, if its results go there
    watched: tuple[str, ...] = ()  # figures about training, besides the losses, that are logged with them
    moment: Moment  # the training loop sets it before every step

    def __init__(self, classes: tuple[str, ...]) -> None:
        self.classes = classes

    @classmethod
    def wording(cls) -> Wording:
        """How errors about unfit data speak of this task and of the others."""
        return Wording(cls.purpose, task_options)

    @classmethod
    def from_settings(cls, settings: Any, images: ImageSet) -> Self:
        """The task as the settings of `vitreous train` ask for it, for these images."""
        return cls(images.classes)

    def arguments(self) -> dict[str, Any]:
        """Besides the classes, what it takes to build the task again for a model that was trained for it."""
        return {}

    def reading(self) -> dict[str, Any]:
        """How the files of the data it was trained on are to be understood, as arguments of `open_data`."""
        return {}

    def resized(self, size: int) -> Self | None:
        """The task for images of another size; None: it takes images of the size of the preprocessing."""
        return None

    def input_size(self, preprocess: Preprocess) -> tuple[int, int]:
        """Height and width of what the model sees; where they vary, the shorter and the longest side."""
        return preprocess.size

    def using(self, inference: Inference) -> Self:
        """The same task, with a model that is used in this way."""
        for entry in fields(inference):
            if getattr(inference, entry.name) is not entry.default and entry.name not in self.inferences:
                given, *accepted = (f"--{name.replace('_', '-')}" for name in (entry.name, *self.inferences))
                raise InputError(
                    f"{given} given, which this model's task cannot use; {self.name} accepts: "
                    f"{', '.join(accepted) or 'nothing of this kind'}"
                )
        self.inference = inference
        return self

    def learn_from(self, teacher: Any) -> None:
        """Take a `Distillation` into the losses."""
        raise InputError(f"a teacher was given, which the task {self.name} cannot use; leave it out")

    def model(self, backbone: nn.Module) -> nn.Module:
        """The trained module: the backbone itself, or the backbone with a head on top."""
        return backbone

    def sides(self, settings: Any) -> tuple[int, ...]:
        """Of the square images that a whole model is shown in training, the largest first."""
        return (settings.size,)

    def learner(self, model: nn.Module) -> nn.Module:
        """What is trained: the model itself, or all that it takes to train it, from which `kept` gets it back."""
        return model

    def kept(self, learner: nn.Module) -> nn.Module:
        """The model that a run leaves behind, of what is trained."""
        return learner

    def load_release(self, model: nn.Module, source: Path) -> Any:
        """Fill a model from a file of one of OpenMMLab's toolboxes; returns a report of every tensor."""
        raise InputError(f"{source} is a model of one of OpenMMLab's toolboxes, which have none for {self.name}")

    # ---- learning ------------------------------------------------------------------------------------------------

    @abstractmethod
    def training_view(self, preprocess: Preprocess, settings: Any) -> PictureView:
        """How pictures are looked at in training, as the settings of `vitreous train` ask for it."""

    @abstractmethod
    def evaluation_view(self, preprocess: Preprocess) -> PictureView:
        """How pictures are looked at in evaluation."""

    def dataset(self, images: ImageSet, view: PictureView) -> Any:
        """Map-style (image tensor, target) pairs, seen through a view."""
        return JointViews(images, view)

    @abstractmethod
    def losses(self, model: nn.Module, images: Tensor, targets: Targets) -> dict[str, Tensor]:
        """Named terms, each a mean over the images; their sum is minimised."""

    @abstractmethod
    def predict(self, model: nn.Module, images: Tensor, targets: Targets) -> list[Prediction]:
        """One prediction for each image; of the targets it uses what is known of any picture, such as its size."""

    @abstractmethod
    def metric(self) -> Metric:
        """A fresh counter of right and wrong answers."""

    def detailed_metric(self, worst: int) -> Metric:
        """The same and more, for a thorough evaluation that also keeps the `worst` mistakes."""
        return self.metric()

    def metric_on_boxes(self, images: OneBoxEach) -> Metric:
        """The metric where a detector said where objects are; only tasks with the inference `boxes` have one."""
        raise NotImplementedError

    def assess(self, model: nn.Module, images: Tensor, targets: Targets) -> Assessment:
        """Losses and predictions of an evaluation batch; override when one forward pass gives both."""
        return Assessment({}, self.predict(model, images, targets))

    def features(self, model: nn.Module, images: Tensor) -> Tensor:
        """(B, C): the pooled features of a whole model."""
        return forward_pooled(model, images)

    def truth(self, targets: Targets) -> Targets:
        """What the metric compares predictions with, made of an evaluation batch's targets."""
        return targets

    def collate(self, samples: list[Any]) -> tuple[Any, Any]:
        """Samples to one batch."""
        return stack(samples)

    def augment_batch(self, images: Tensor, targets: Targets, rng: np.random.Generator) -> tuple[Tensor, Targets]:
        """Random changes that need the whole batch."""
        return images, targets

    def watch(self) -> dict[str, Tensor]:
        """The figures of `watched` about the latest losses, each a mean over the images."""
        return {}

    def doubts(self, figures: Mapping[str, float]) -> tuple[str, ...]:
        """What the means of `watched` since the last log entry tell the user to look at, each said once."""
        return ()

    def before_update(self, learner: nn.Module) -> None:  # noqa: B027  (a hook, not a duty)
        """Called when the gradients of a step are there, before they are clipped."""

    def after_step(self, learner: nn.Module) -> None:  # noqa: B027  (a hook, not a duty)
        """Called after each optimiser step."""

    # ---- answering -----------------------------------------------------------------------------------------------

    def blank_targets(self, picture: Image.Image, found: Sequence[Found]) -> list[Targets]:
        """Targets of samples of a picture of which nothing is known but, at most, where objects are."""
        return [{}]

    def sample(self, preprocess: Preprocess, picture: Image.Image, target: dict[str, Any]) -> tuple[Tensor, Any]:
        """A picture and its target as the model sees them."""
        return self.evaluation_view(preprocess)(picture, target)

    @abstractmethod
    def result(self, picture: Image.Image, predictions: list[Prediction], targets: list[Targets]) -> PictureResult:
        """The predictions for a picture as an object; `targets` are those of `blank_targets`."""

    # ---- explaining ----------------------------------------------------------------------------------------------

    @property
    def finding_names(self) -> tuple[str, ...]:
        """What a finding can be."""
        return self.classes

    def check_query(self, query: FindingQuery) -> None:
        """What the task cannot give is refused before the work."""
        given = query.given()
        for name, value in given.items():
            if name not in self.query_fields:
                accepted = ", ".join(f"--{each}" for each in self.query_fields)
                raise InputError(
                    f"--{name} {value} given, but this model is for the task '{self.name}'; accepted: {accepted}"
                )
        if len(given) > 1 and set(given) != {"label", "region"}:
            raise InputError(f"{' and '.join(f'--{name}' for name in given)} given; each chooses a finding: give one")
        if query.label is not None and query.label not in self.classes:
            raise InputError(f"unknown class {query.label!r}; nearest: {nearest(query.label, list(self.classes))}")
        if query.joint is not None and query.joint not in self.finding_names:
            raise InputError(f"unknown joint {query.joint!r}; accepted: {', '.join(self.finding_names)}")
        if query.finding is not None and query.finding < 1:
            raise InputError(f"--finding {query.finding} given; findings are counted from 1, the best")
        if query.region is not None and not all(map(math.isfinite, query.region)):
            raise InputError(f"--region {query.region} given; left, top, right, bottom are numbers of pixels")

    def choose_finding(self, prediction: Prediction, view: ModelView, query: FindingQuery) -> FindingChoice:
        """Everything found in a picture, and the target of what is asked for."""
        raise InputError(f"findings of the task {self.name} cannot be explained")

    def finding_under(self, prediction: Prediction, view: ModelView, point: Point, listed: int) -> int | None:
        """The rank of what was found at a point of the picture as the model sees it; None: nothing. Where many findings
        overlap, the first `listed` ones count.
        """
        return None

    def explained_model(self, model: nn.Module, labels: tuple[int, ...], view: ModelView) -> nn.Module:
        """What the targets of findings with these labels read from."""
        return model

    def scores_now(self, found: FoundTargets, view: ModelView, model: nn.Module, output: Any) -> list[float]:
        """`finding_score` of each finding, were this the output of its `explained_model`; 0 for one that is gone."""
        return [target.on("probability")(output).item() for _, target in found]

    def truth_view(self, preprocess: Preprocess) -> PictureView:
        """As in evaluation, with all that `finding_truth` needs."""
        return self.evaluation_view(preprocess)

    def finding_truth(self, target: Target, known: Targets, size: tuple[int, int]) -> FindingTruth:
        """What the data say about a finding; `known` is what `truth_view` gives of the picture, `size` is (h, w)."""
        return FindingTruth()

    def check_data(self, images: ImageSet) -> None:  # noqa: B027  (a hook, not a duty)
        """Refuse data that do not go with the model."""


class TaskWithHead(Task):
    """A task with heads to choose from, at a picture's own proportions, whose results COCO's files can hold."""

    usual_head: str
    settings = frozenset({"head", "head_args", "head_lr"})

    def __init__(
        self,
        classes: tuple[str, ...],
        head: str | None,
        head_args: Mapping[str, Any] | None,
        category_ids: tuple[int, ...] = (),
    ) -> None:
        """`category_ids` are the classes' numbers in the data, if these have any."""
        super().__init__(classes)
        if head is not None and head not in self.heads:
            raise InputError(f"unknown head '{head}'; accepted for this task: {', '.join(self.heads)}")
        if category_ids and len(category_ids) != len(classes):
            raise InputError(f"{len(category_ids)} category ids given for {len(classes)} classes; they must be as many")
        self.head, self.head_args = head or self.usual_head, dict(head_args or {})
        self.category_ids = category_ids or tuple(range(1, len(classes) + 1))

    @property
    def min_score(self) -> float:
        """Smallest score of what is shown."""
        return MIN_SCORE if self.inference.min_score is None else self.inference.min_score

    def arguments(self) -> dict[str, Any]:
        return {"head": self.head, "head_args": self.head_args}

    def collate(self, samples: list[Any]) -> tuple[Any, Any]:
        return collate_dense(samples)

    def losses(self, model: nn.Module, images: Tensor, targets: Targets) -> dict[str, Tensor]:
        return model(images, targets)


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
