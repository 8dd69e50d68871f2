"""A trained model with all that it takes to use it: its task, its classes, how it wants its pictures.

trained = vitreous.load_model("runs/cells")
found = trained.predict("photo.jpg")                 # one picture, one result
results = trained.predict(pictures, batch_size=8)    # several, a list of results
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack, overload

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from torch import Tensor, nn

from vitreous.data.detector_boxes import Found
from vitreous.data.image_set import ImageSet, Wrapped
from vitreous.data.joint import IGNORE
from vitreous.data.loader import moved_to
from vitreous.data.pictures import Pictured, as_picture
from vitreous.data.transforms import ImageSize, Preprocess, read_size
from vitreous.errors import InputError
from vitreous.models.base import Backbone
from vitreous.models.pooled import pooled_width
from vitreous.runs.results import require_numbers, require_positive
from vitreous.tasks.base import Inference, Prediction, Targets, Task, load_task
from vitreous.tasks.results import PictureResult

Item = TypeVar("Item")
SHOWN_CLASSES = 20  # of a model in a notebook
ObjectBoxes = Any  # a result with boxes, such as a detector's, or numbers (n, 4): x0 y0 x1 y1


class PredictOptions(TypedDict, total=False):
    """Keywords of `TrainedModel.predict`."""

    batch_size: int | None
    flip: bool
    scales: Sequence[float]
    slide: bool
    top_k: int | None
    min_score: float | None
    boxes: ObjectBoxes


class TrainedModel(NamedTuple):
    model: nn.Module  # in eval mode
    name: str
    task: str
    classes: tuple[str, ...]
    preprocess: Preprocess
    task_args: Mapping[str, Any] = MappingProxyType({})
    # Share of data without splits that it may be measured on; all of it, unless it was trained on such data itself.
    val_fraction: float = 1.0

    def build_task(self) -> Task:
        """The task it was trained for."""
        return load_task(self.task)(self.classes, **self.task_args)

    def _repr_html_(self) -> str:
        """What a notebook shows: a table instead of all layers."""
        height, width = self.preprocess.size
        classes = ", ".join(self.classes[:SHOWN_CLASSES]) + (", …" if len(self.classes) > SHOWN_CLASSES else "")
        facts = {
            "model": self.name,
            "task": self.task,
            "parameters": f"{sum(one.numel() for one in self.model.parameters()):,}",
            "images": f"{height} x {width} pixels",
            f"{len(self.classes)} classes": classes,
        }
        row = Markup("<tr><th style='text-align:left'>{}</th><td style='text-align:left'>{}</td></tr>")
        return f"<table>{''.join(row.format(*fact) for fact in facts.items())}</table>"

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @overload
    def predict(  # type: ignore[overload-overlap]  # a text is one picture
        self, pictures: Pictured, **options: Unpack[PredictOptions]
    ) -> PictureResult: ...

    @overload
    def predict(self, pictures: Iterable[Pictured], **options: Unpack[PredictOptions]) -> list[PictureResult]: ...

    def predict(
        self,
        pictures: Pictured | Iterable[Pictured],
        *,
        batch_size: int | None = None,
        flip: bool = False,
        scales: Sequence[float] = (),
        slide: bool = False,
        top_k: int | None = None,
        min_score: float | None = None,
        boxes: ObjectBoxes = None,
    ) -> PictureResult | list[PictureResult]:
        """What the model says about a picture, or about each of several. What its task cannot use is refused.

        Args:
            pictures: A path, a PIL image, an array (H, W, 3) or (H, W), a tensor (3, H, W), of bytes or of floats from
                0 to 1; or several of these, as a list, a tuple or anything that can be iterated over.
            batch_size: Pictures per forward pass; default: 32, and 1 where pictures differ in size.
            flip: Segmentation and keypoints: the mean with the answer about the mirrored picture.
            scales: Segmentation: the mean over the picture at these scales.
            slide: Segmentation: windows of the size of the training crops, instead of the whole picture at once.
            top_k: Classification: number of classes; default: 5.
            min_score: Detection: smallest score of a box; keypoints: of a point that is drawn. Default: all boxes are
                given, and drawn from 0.3. Several labels: probability from which one is said; default: 0.5.
            boxes: Keypoints: where objects are, as a detector's result or numbers (n, 4), x0 y0 x1 y1; for several
                pictures, a list with as many of them. Default: a picture is one object.

        Returns:
            A `Classification`, `LabelSet`, `Estimate`, `Detections`, `Segmentation` or `Keypoints`; of several, a list.
        """
        require_positive(top_k=1 if top_k is None else top_k, batch_size=1 if batch_size is None else batch_size)
        require_evaluation_mode(self.model)
        task = self.build_task().using(Inference(bool(flip), tuple(scales), bool(slide), top_k, min_score, boxes))
        single = isinstance(pictures, str | os.PathLike | Image.Image | np.ndarray | Tensor)
        given: list[Any] = list(pictures) if not single and isinstance(pictures, Iterable) else [pictures]
        places = [None] * len(given) if boxes is None else [boxes] if single else list(boxes)
        if len(places) != len(given):
            raise InputError(f"{len(places)} boxes given for {len(given)} pictures; give a list with those of each")
        results: list[PictureResult] = []
        for group in in_batches(zip(given, places, strict=True), batch_size or task.batch_size):
            objects = [None if place is None else objects_in(place, self.classes) for _, place in group]
            loaded = [as_picture(one) for one, _ in group]
            results += predict_pictures(self, task, loaded, objects, batch_size or task.batch_size)
        if min_score is not None:
            results = [result.kept() for result in results]
        return results[0] if single else results


def require_evaluation_mode(model: nn.Module) -> None:
    if model.training:
        raise InputError("the model is in training mode, where its answers are random; call model.eval() first")


def objects_in(boxes: ObjectBoxes, classes: tuple[str, ...]) -> list[Found]:
    """Boxes of one picture; of a detector's result those of classes that the model knows."""
    if hasattr(boxes, "names") and hasattr(boxes, "scores"):
        rows = zip(boxes.boxes.tolist(), boxes.names, boxes.scores.tolist(), strict=True)
        return [Found(tuple(box), classes.index(name), score) for box, name, score in rows if name in classes]
    return [Found(tuple(box), 0) for box in _as_boxes(boxes).tolist()]


def _as_boxes(boxes: ArrayLike) -> NDArray[np.float64]:
    try:
        values = np.asarray(boxes, np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.size == 0 and isinstance(boxes, Sequence):
        return np.empty((0, 4))
    if values.ndim != 2 or values.shape[1] != 4 or not np.isfinite(values).all():
        raise InputError(
            f"boxes of the type {type(boxes).__name__} and shape {values.shape} given for a picture; accepted: a "
            "detector's result, or numbers (n, 4): x0 y0 x1 y1. Several pictures need a list of these"
        )
    return values


class PreparedPicture(NamedTuple):
    """A picture, and what a model is asked about it."""

    picture: Image.Image
    targets: list[Targets]
    samples: list[Any]  # one for each target, as `Task.sample` gives it


def prepare_picture(
    trained: TrainedModel, task: Task, picture: Image.Image, found: Sequence[Found] | None = None
) -> PreparedPicture:
    """`found` are the objects in it, None where nobody has looked for any."""
    targets = [] if found is not None and not found else task.blank_targets(picture, found or ())
    return PreparedPicture(picture, targets, [task.sample(trained.preprocess, picture, target) for target in targets])


def predict_prepared(
    trained: TrainedModel, task: Task, prepared: Sequence[PreparedPicture], batch_size: int
) -> list[PictureResult]:
    """One result for each picture."""
    samples = [sample for one in prepared for sample in one.samples]
    answers = iter([one for batch in in_batches(samples, batch_size) for one in predict_samples(trained, task, batch)])
    return [task.result(one.picture, list(islice(answers, len(one.targets))), one.targets) for one in prepared]


def predict_pictures(
    trained: TrainedModel,
    task: Task,
    pictures: Sequence[Image.Image],
    objects: Sequence[Sequence[Found] | None],
    batch_size: int,
) -> list[PictureResult]:
    """One result for each picture; `objects` as in `prepare_picture`."""
    prepared = [prepare_picture(trained, task, *pair) for pair in zip(pictures, objects, strict=True)]
    return predict_prepared(trained, task, prepared, batch_size)


@torch.inference_mode()
def predict_samples(trained: TrainedModel, task: Task, samples: list[Any]) -> list[Prediction]:
    """One prediction for each sample as `Task.sample` gives it."""
    pixels, targets = task.collate(samples)
    moved = {key: moved_to(value, trained.device) for key, value in targets.items()}
    inputs = trained.preprocess.normalise_bytes(pixels.to(trained.device))
    predictions = task.predict(trained.model, inputs, moved)
    for prediction in predictions:
        for value in prediction.values():
            if value.is_floating_point():  # masks and labels always are numbers, and very many
                require_numbers(trained.name, value)
    return predictions


def in_batches(items: Iterable[Item], batch_size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, batch_size)):
        yield batch


# ---- another size, other classes ---------------------------------------------------------------------------------


def at_size(trained: TrainedModel, size: ImageSize) -> TrainedModel:
    """The model with another image size. Many of timm's take one size only, and only running them shows it."""
    given = read_size(size)
    resized = trained.build_task().resized(given if isinstance(given, int) else min(given))
    if resized is not None:
        if not isinstance(given, int):
            raise InputError(
                f"--size {size} gives height and width, and a model for the task '{trained.task}' keeps the "
                f"proportions of a picture: give the shorter side alone, as in --size {min(given)}"
            )
        return trained._replace(task_args=resized.arguments())
    height, width = (given, given) if isinstance(given, int) else given
    refusal = refusal_of_size(trained.model, height, width)
    if refusal is not None:
        own = "x".join(map(str, trained.preprocess.size))
        raise InputError(
            f"model '{trained.name}' cannot take images of {height}x{width} pixels ({refusal}); "
            f"it was trained with {own}: leave this size out, or train the model at the size you need"
        )
    return trained._replace(preprocess=replace(trained.preprocess, size=(height, width)))


def refusal_of_size(model: nn.Module, height: int, width: int | None = None) -> str | None:
    """Why a model cannot take images of this height and width; None if it can. One side alone stands for both."""
    width = height if width is None else width
    if isinstance(model, Backbone):  # ours take every size above the smallest
        smallest = model.strides[-1]
        enough = min(height, width) >= smallest
        return None if enough else f"the smallest this model can take is {smallest}x{smallest}"
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, 3, height, width, device=next(model.parameters()).device))
    except (AssertionError, RuntimeError, ValueError) as reason:  # timm's have no common way to say so
        return (str(reason).splitlines() or [type(reason).__name__])[0]
    finally:
        model.train(training)
    return None


def is_whole(trained: TrainedModel) -> bool:
    """Whether the model is a backbone as timm knows it, with its own classifier or without one."""
    return not load_task(trained.task).on_feature_maps


def is_classifier(trained: TrainedModel) -> bool:
    """Whether the model is a backbone with its own classifier, as timm knows it, that says one class of a picture."""
    return is_whole(trained) and bool(trained.classes) and not load_task(trained.task).has_findings


def feature_width(trained: TrainedModel) -> int:
    """How many features a picture has; a model that has none to give is refused."""
    if not is_whole(trained):
        raise InputError(
            f"model '{trained.name}' ({trained.task}) has no pooled features; classifiers of ours and timm's have"
        )
    return pooled_width(trained.model, trained.preprocess.size, trained.name)


def class_columns(trained: TrainedModel, classes: tuple[str, ...]) -> tuple[int, ...]:
    """Where each of these classes is in the model's output, by name."""
    numbered = is_classifier(trained) and classes[0] not in trained.classes
    known = _imagenet_folders(trained, classes) if numbered else trained.classes
    position = {name: index for index, name in enumerate(known)}
    unknown = [name for name in classes if name not in position]
    if len(unknown) == len(classes) == len(known) and known == number_names(len(known)):
        order = ", ".join(f"{number} = {name}" for number, name in enumerate(classes[:3]))
        print(f"the classes of '{trained.name}' have no names; taken for those of the data in order: {order}, …")
        return tuple(range(len(classes)))
    if unknown:
        raise InputError(
            f"the model '{trained.name}' does not know the class {unknown[0]!r} of the data; its classes are "
            f"{', '.join(trained.classes[:8])}{', …' if len(trained.classes) > 8 else ''}"
        )
    return tuple(position[name] for name in classes)


def _imagenet_folders(trained: TrainedModel, classes: tuple[str, ...]) -> tuple[str, ...]:
    """What ImageNet's folders may be called, in the order of the model's answers: WordNet numbers, or plain numbers.

    Plain numbers, as of ImageNet-V2, could mean anything, so they count only if the model's classes are ImageNet's.
    """
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(trained.model)
    if subset is None:
        return trained.classes
    info = ImageNetInfo(subset)
    synsets = tuple(info.label_names())
    if not all(name.isdecimal() for name in classes):
        return synsets
    readable = tuple(info.label_descriptions(detailed=False))
    if trained.classes not in (synsets, readable):
        return trained.classes
    written = {int(name): name for name in classes}  # 7 may be written 007
    return tuple(written.get(number, str(number)) for number in range(len(synsets)))


def number_names(count: int) -> tuple[str, ...]:
    """Names of classes of which nobody has said the names."""
    return tuple(str(index) for index in range(count))


class Relabelled(Wrapped):
    """An image set whose labels are positions in the model's class list instead of its own."""

    def __init__(self, images: ImageSet, trained: TrainedModel) -> None:
        super().__init__(images)
        self.classes, self._label = trained.classes, np.array(class_columns(trained, images.classes))

    def target(self, index: int) -> dict[str, Any]:
        target = super().target(index)
        if "labels" in target:
            return target | {"labels": int(self._label[target["labels"]])}
        if "label_set" in target:
            return target | {"label_set": tuple(int(self._label[label]) for label in target["label_set"])}
        if "semantic" in target:
            table = np.full(IGNORE + 1, IGNORE, np.uint8)
            table[: len(self._label)] = self._label
            return target | {"semantic": table[target["semantic"]]}
        named = {key: target[key] for key in ("objects", "annotated") if key in target}
        return target | {key: replace(value, labels=self._label[value.labels]) for key, value in named.items()}


def labelled_for(trained: TrainedModel, images: ImageSet) -> ImageSet:
    """Match classes by name: the data may have fewer classes, or another order."""
    return images if images.classes == trained.classes else Relabelled(images, trained)
