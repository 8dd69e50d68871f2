"""How well classes can be told from a model's features: by neighbours, or by a linear classifier."""

import time
from functools import partial
from typing import Any

from vitreous.data.layouts.base import Wording
from vitreous.data.layouts.held_out import VAL_FRACTION
from vitreous.data.loader import worker_failures_explained
from vitreous.data.source import describe
from vitreous.errors import InputError
from vitreous.evaluations.answers import Conditions, measured_speed
from vitreous.evaluations.settings import EvaluateSettings, OpenAtSize
from vitreous.reports.evaluation import Evaluation
from vitreous.runs.results import require_numbers
from vitreous.runs.trained_model import TrainedModel, feature_width
from vitreous.runtime.distributed import World
from vitreous.training.feature_scores import LabelledFeatures, gathered_features, labelled_features, neighbour_scores
from vitreous.training.linear_probe import linear_scores
from vitreous.training.scoring import evaluation_loader


def measure_features(
    trained: TrainedModel, settings: EvaluateSettings, opener: OpenAtSize, conditions: Conditions
) -> Evaluation:
    """How well classes can be told from a model's features: by neighbours, or by a linear classifier."""
    world, task = conditions.world, trained.build_task()
    world.agree(lambda: feature_width(trained))
    if settings.val_fraction is None and trained.val_fraction == 1:  # data without splits need two all the same
        opener = partial(opener, val_fraction=VAL_FRACTION)
    counts = {"train": settings.train_count, settings.split: settings.count}
    if len(counts) == 1:
        raise InputError("--split train given, which --knn and --linear learn from; give val or test")
    opener = partial(opener, targets="labels", wording=Wording("compare features of classes"))
    size = trained.preprocess.size
    images = world.agree(lambda: {name: opener(split=name, count=n, size=size) for name, n in counts.items()})
    print(describe(settings.data, "labels", **images))
    found, unreadable, start = [], [], time.perf_counter()
    options: dict[str, Any] = {"batch_size": conditions.batch_size, "workers": conditions.workers, "world": world}
    for name, split in images.items():
        loader, label = evaluation_loader(task, split, trained.preprocess, **options), f"features of {name}"
        try:
            with worker_failures_explained():
                found.append(labelled_features(task, trained.model, loader, world, conditions.amp, label=label))
        finally:
            loader.close()
        bad = {one for part in world.gather(found[-1].unreadable) for one in part}
        unreadable += [(split.name(one.sample), one.reason) for one in sorted(bad)]
    seconds = time.perf_counter() - start
    return Evaluation(
        model=trained.name,
        data=settings.data,
        split=settings.split,
        images=sum(world.gather(len(found[1].labels))),
        size=size,
        values=feature_values(trained, settings, found, len(images["train"].classes), world),
        speed=measured_speed(sum(map(len, images.values())) / seconds, conditions),
        sizes=(),
        details=None,
        mistakes=(),
        unreadable=tuple(unreadable),
    )


def feature_values(
    trained: TrainedModel, settings: EvaluateSettings, found: list[LabelledFeatures], classes: int, world: World
) -> dict[str, float]:
    """The linear classifier comes first: neighbours change the features' lengths."""
    values: dict[str, float] = {}
    for part in found:
        require_numbers(trained.name, part.rows)
    if settings.linear:
        train, val = (gathered_features(part, world) for part in found)
        options = {"device": world.device, "epochs": settings.linear_epochs}
        scores = world.on_main(lambda: linear_scores(train, val, classes, **options))  # type: ignore[arg-type]
        print(f"linear: of the learning rates, {scores.learning_rate:g} did best on a held-out tenth")
        values |= scores.values
    if settings.knn:
        values |= neighbour_scores(found[0], found[1], classes, world, settings.neighbours)
    return values
