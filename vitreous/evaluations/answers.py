"""What a model answers, measured: at its own size and at others, in groups, and beside an earlier model."""

from pathlib import Path
from typing import NamedTuple

import torch

from vitreous.data.annotations import OneBoxEach, OneObjectEach
from vitreous.data.detector_boxes import read_boxes
from vitreous.data.groups import group_pictures
from vitreous.data.image_set import ImageSet
from vitreous.data.loader import worker_failures_explained
from vitreous.data.source import describe
from vitreous.errors import InputError
from vitreous.evaluations.settings import EvaluateSettings, OpenAtSize
from vitreous.metrics.accuracy import DetailedMetrics, unique_names
from vitreous.metrics.groups import GroupAccuracy
from vitreous.reports.evaluation import AtSize, EarlierModel, Evaluation, Speed, WorstMistake
from vitreous.runs.results import require_numbers
from vitreous.runs.trained_model import TrainedModel, labelled_for
from vitreous.runtime.distributed import World
from vitreous.tasks.base import Inference, load_task
from vitreous.training.scoring import Scores, evaluation_loader, score_loader


class Conditions(NamedTuple):
    """How a measurement runs; what changes the figures comes last."""

    batch_size: int
    workers: int
    world: World
    amp: str
    inference: Inference = Inference()


def measure_in_detail(
    trained: TrainedModel, settings: EvaluateSettings, opener: OpenAtSize, conditions: Conditions
) -> Evaluation:
    """Everything there is to tell about a model at its own size."""
    boxes = conditions.inference.boxes
    images = conditions.world.agree(lambda: opener(size=trained.preprocess.size))
    print(describe(settings.data, load_task(trained.task).targets, **{settings.split: images}))
    groups = conditions.world.agree(lambda: counted_groups(images, settings.groups))
    images = conditions.world.agree(lambda: samples_of(trained, images, boxes))
    if boxes is not None:
        print(f"boxes: {len(images)}, of {boxes}")
    scores = score_images(trained, images, settings.worst, conditions, label=f"evaluate {trained.name}", groups=groups)
    details = scores.metric if isinstance(scores.metric, DetailedMetrics) else None
    return Evaluation(
        model=trained.name,
        data=settings.data,
        split=settings.split,
        images=len(images) - len(scores.unreadable),
        size=trained.build_task().input_size(trained.preprocess),
        values=scores.values,
        speed=measured_speed(scores.images_per_second, conditions),
        sizes=(),
        details=details,
        metric=scores.metric,
        mistakes=_named_mistakes(trained, images, details, f"{settings.data}:{settings.split}"),
        unreadable=tuple((images.name(one.sample), one.reason) for one in scores.unreadable),
        columns=settings.groups,
    )


def counted_groups(images: ImageSet, columns: tuple[str, ...]) -> GroupAccuracy | None:
    """A counter of right answers in every group of the images, if groups are asked for."""
    if not columns:
        return None
    found = group_pictures(images, columns, "--groups")
    return GroupAccuracy(
        found.names, [dict(zip(columns, values, strict=True)) for values in found.values], found.members
    )


def measure_before(
    earlier: TrainedModel, settings: EvaluateSettings, opener: OpenAtSize, conditions: Conditions, now: Evaluation
) -> EarlierModel:
    """Another model on the same images, in the same groups."""
    assert now.groups is not None
    earlier.model.to(conditions.world.device)
    images = conditions.world.agree(lambda: labelled_for(earlier, opener(size=earlier.preprocess.size)))
    groups = now.groups.fresh()
    scores = score_images(earlier, images, 0, conditions, label=f"evaluate {settings.before}", groups=groups)
    assert isinstance(scores.metric, DetailedMetrics)
    assert scores.metric.groups is not None
    return EarlierModel(str(settings.before), settings.model, scores.values, scores.metric.groups)


def measured_speed(images_per_second: float, conditions: Conditions) -> Speed:
    device, precision = conditions.world.device, "fp32" if conditions.amp == "off" else conditions.amp
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    threads = torch.get_num_threads()
    return Speed(images_per_second, conditions.batch_size, name, precision, threads, conditions.workers)


def measure_at(trained: TrainedModel, whole: Evaluation, opener: OpenAtSize, conditions: Conditions) -> AtSize:
    """The figures at another size; those of the model's own size are there already."""
    size = trained.build_task().input_size(trained.preprocess)
    if size == whole.size:
        return AtSize(size[0], whole.values, whole.speed.images_per_second)
    boxes = conditions.inference.boxes
    images = conditions.world.agree(lambda: samples_of(trained, opener(size=trained.preprocess.size), boxes))
    groups = None if whole.groups is None else whole.groups.fresh()
    scores = score_images(trained, images, 0, conditions, label=f"evaluate at {size[0]} x {size[1]}", groups=groups)
    return AtSize(size[0], scores.values, scores.images_per_second)


def samples_of(trained: TrainedModel, images: ImageSet, boxes: Path | None) -> ImageSet:
    """What the model is asked about, with its own labels: the samples of the data, or a detector's boxes in them."""
    if boxes is None:
        return labelled_for(trained, images)
    pictures = images.images if isinstance(images, OneObjectEach) else images
    categories = dict(zip(images.category_ids, images.classes, strict=True))
    found = read_boxes(boxes, categories, trained.classes).of_each(pictures, boxes)
    if not any(found):
        raise InputError(f"--boxes {boxes} has no box of {', '.join(trained.classes)} in the data")
    return OneBoxEach(labelled_for(trained, pictures), found)


def score_images(
    trained: TrainedModel,
    images: ImageSet,
    worst: int,
    conditions: Conditions,
    *,
    label: str,
    groups: GroupAccuracy | None = None,
) -> Scores:
    task = trained.build_task().using(conditions.inference)
    on_boxes = images if isinstance(images, OneBoxEach) else None
    metric = task.detailed_metric(worst) if on_boxes is None else task.metric_on_boxes(on_boxes)
    if groups is not None and isinstance(metric, DetailedMetrics):
        metric.count_groups(groups)
    workers, world = conditions.workers, conditions.world
    loader = evaluation_loader(
        task, images, trained.preprocess, batch_size=conditions.batch_size, workers=workers, world=world
    )
    try:
        with worker_failures_explained():  # a worker's death may be told in the middle of a forward pass
            scores = score_loader(task, trained.model, loader, world, conditions.amp, metric=metric, label=label)
    finally:
        loader.close()
    require_numbers(trained.name, torch.tensor(list(scores.values.values())))
    return scores


def _named_mistakes(
    trained: TrainedModel, images: ImageSet, details: DetailedMetrics | None, samples: str
) -> tuple[WorstMistake, ...]:
    """With the names by which `vitreous explain` takes the images: a path, or a sample of the embedded data."""
    names = unique_names(trained.classes)
    found = []
    for mistake in () if details is None else details.mistakes.worst:
        stored = images.encoded(mistake.image)
        name = str(stored) if isinstance(stored, Path) else images.name(mistake.image)
        if samples.startswith("shapes:"):
            name = f"{samples}:{mistake.image}"
        seen = trained.preprocess.picture(images.picture(mistake.image))
        found.append(WorstMistake(name, names[mistake.true], names[mistake.answer], mistake.confidence, seen))
    return tuple(found)
