"""`vitreous evaluate`: a model and data in, figures out. `train` validates with the same `score_loader`."""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from rich.console import Console
from torch import nn
from typing_extensions import Doc

from vitreous.data.annotations import OneBoxEach, OneObjectEach
from vitreous.data.detector_boxes import read_boxes
from vitreous.data.groups import group_pictures
from vitreous.data.image_set import ImageSet
from vitreous.data.layouts.base import Wording
from vitreous.data.layouts.coco_anywhere import with_annotations
from vitreous.data.layouts.held_out import VAL_FRACTION
from vitreous.data.loader import WORKER_TIMEOUT, BatchSampler, Loader, Unreadable, worker_failures_explained
from vitreous.data.source import describe, open_data, recognise
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError, printable
from vitreous.explanations.model_card import refresh_card
from vitreous.files.storage import json_text, write_json
from vitreous.files.writing import write_output, write_text
from vitreous.metrics.accuracy import DetailedMetrics, unique_names
from vitreous.metrics.groups import GroupAccuracy
from vitreous.metrics.neighbours import VOTING_NEIGHBOURS, NeighbourAccuracy
from vitreous.reports import evaluation as report
from vitreous.reports.evaluation import AtSize, EarlierModel, Evaluation, Speed, WorstMistake
from vitreous.runs.model_folder import load_classifier, load_model
from vitreous.runs.results import require_numbers, require_writable, result_folder
from vitreous.runs.run_folder import RUN, versions
from vitreous.runs.trained_model import TrainedModel, at_size, feature_width, is_classifier, labelled_for
from vitreous.runtime.calling import takes
from vitreous.runtime.console import track
from vitreous.runtime.device import autocast
from vitreous.runtime.distributed import SINGLE_PROCESS, World, processes
from vitreous.tasks.base import Inference, Metric, Task, load_task
from vitreous.training.feature_scores import LabelledFeatures, gathered_features, labelled_features, neighbour_scores
from vitreous.training.linear_probe import EPOCHS, linear_scores

OpenAtSize = Callable[..., ImageSet]  # opens the data at a size

_RESULT, _REPORT, _MATRIX = "evaluation.json", "report.md", "confusion.csv"
_EVALUATION_FOLDER = "evaluation"  # of a run that is compared with an earlier one


class Scores(NamedTuple):
    values: dict[str, float]  # loss (where the task gives one) and the metric's figures
    images_per_second: float
    metric: Metric  # for details such as per-class accuracy
    unreadable: tuple[Unreadable, ...] = ()  # images that are no part of the figures


class Conditions(NamedTuple):
    """How a measurement runs; what changes the figures comes last."""

    batch_size: int
    workers: int
    world: World
    amp: str
    inference: Inference = Inference()


@dataclass(frozen=True)
class EvaluateSettings:
    model: Annotated[
        str,
        Doc("Run folder, model folder, file of weights (.pth, .safetensors), or model name for its published ones."),
    ]
    data: Annotated[
        str,
        Doc(
            "shapes, shapes:hard, shapes:corner_mark=0.9, a folder with val/<class>/, or another layout: docs/data.md."
        ),
    ]
    _: KW_ONLY
    split: Annotated[str, Doc("val, test or train.")] = "val"
    size: Annotated[
        int | None,
        Doc(
            "Height and width in pixels, or the shorter side for detectors and segmenters; default: what the model was "
            "trained with."
        ),
    ] = None
    sizes: Annotated[
        tuple[int, ...],
        Doc("Measure at these sizes as well, to see how the model takes images larger or smaller than in training."),
    ] = ()
    groups: Annotated[
        tuple[str, ...],
        Doc(
            "Classification: accuracy in groups of images too, by columns of metadata.csv (of shapes with a planted "
            "shortcut: mark, agrees) or by class; several columns combine."
        ),
    ] = ()
    before: Annotated[
        str | None,
        Doc(
            "With --groups: another model, measured on the same images, to see what changed in every group. The report "
            "goes to the folder evaluation of the run, unless --out says where."
        ),
    ] = None
    knn: Annotated[
        bool,
        Doc(
            "Measure the model's features, not its answers: by their nearest neighbours among the training pictures. "
            "The data need labels and the model none."
        ),
    ] = False
    neighbours: Annotated[tuple[int, ...], Doc("With --knn: how many neighbours vote.")] = VOTING_NEIGHBOURS
    linear: Annotated[
        bool,
        Doc(
            "The same by a linear classifier, trained on the features of the training pictures with the learning rate "
            "that does best on a tenth of them."
        ),
    ] = False
    linear_epochs: Annotated[int, Doc("With --linear: passes over the features of the training pictures.")] = EPOCHS
    worst: Annotated[int, Doc("How many of the wrong answers with the largest confidence to list.")] = 10
    flip: Annotated[bool, Doc("Segmentation and keypoints: the mean with the answer about the mirrored picture.")] = (
        False
    )
    scales: Annotated[tuple[float, ...], Doc("Segmentation: the mean over the picture at these scales.")] = ()
    slide: Annotated[
        bool,
        Doc("Segmentation: windows of the size of the training crops, instead of the whole picture at once."),
    ] = False
    ignore: Annotated[
        tuple[int, ...],
        Doc("Values of label pictures that stand for no class; default: as in training, where that is 255 by default."),
    ] = ()
    reduce_zero_label: Annotated[
        bool,
        Doc(
            "In label pictures 0 stands for no class, and 1 for the first; default: as in training. Of these two, one "
            "that is given takes the place of both."
        ),
    ] = False
    batch_size: Annotated[int, Doc("Images per forward pass.")] = 64
    count: Annotated[int | None, Doc("How many images of `shapes` to draw.")] = None
    train_count: Annotated[
        int | None, Doc("With --knn and --linear: how many training images of `shapes` to draw.")
    ] = None
    quarantine: Annotated[
        Path | None, Doc("List of images to leave out; default: quarantine.txt in the data's folder, if there is one.")
    ] = None
    annotations: Annotated[tuple[str, ...], Doc("COCO files of the pictures below DATA, as in train.")] = ()
    val_fraction: Annotated[
        float | None,
        Doc(
            "Share held out as val of data without splits; default: as in training, and all of it for a model that was "
            "not trained on such data, such as a published one."
        ),
    ] = None
    boxes: Annotated[
        Path | None,
        Doc(
            "Keypoints: a list of COCO's results, or predictions.json of a detector: where it found objects in the "
            "data. All of them count, with the product of the detector's score and the keypoints' as score."
        ),
    ] = None
    follow: Annotated[
        bool, Doc("Open pictures that the data's own files name outside of the data's folder (.. or an absolute path).")
    ] = False
    workers: Annotated[int, Doc("Processes that prepare images; 0 = the main one does it.")] = 2
    device: Annotated[str, Doc("cpu, cuda, cuda:1, mps; auto takes the best there is.")] = "auto"
    architecture: Annotated[str | None, Doc("Of a file: the name of its model, where it does not tell it itself.")] = (
        None
    )
    model_args: Annotated[
        tuple[str, ...],
        Doc("Of a file: what its model was built with, where that is not the default, e.g. stem_stride=2."),
    ] = ()
    amp: Annotated[Literal["off", "bf16", "fp16"], Doc("Mixed precision.")] = "off"
    json: Annotated[Path | None, Doc("Write the figures to this file too.")] = None
    markdown: Annotated[Path | None, Doc("Write the tables to this file too.")] = None
    out: Annotated[
        Path | None, Doc("Write figures, tables and pictures to this folder; an earlier evaluation there is replaced.")
    ] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", with_annotations(self.data, self.annotations))
        if self.batch_size < 1:
            raise InputError(f"batch size {self.batch_size} cannot be used; it must be at least 1")
        if self.workers < 0:
            raise InputError(f"--workers {self.workers} cannot be used; give 0 (the main process does it) or more")
        if self.worst < 0:
            raise InputError(f"--worst {self.worst} cannot be used; give 0 (none) or more")
        if self.before is not None and not self.groups:
            raise InputError(
                f"--before {self.before} goes with --groups, which says what to compare; add --groups class"
            )

        if self.on_features:
            self._check_features()

    def _check_features(self) -> None:
        NeighbourAccuracy(1, self.neighbours)
        if self.linear_epochs < 1:
            raise InputError(f"--linear-epochs {self.linear_epochs} cannot be used; it must be at least 1")
        for name in ("sizes", "groups", "flip", "scales", "slide", "boxes"):
            if getattr(self, name):
                raise InputError(f"--{name} is about answers, and --knn and --linear are about features; leave one out")

    @property
    def on_features(self) -> bool:
        """Whether features are measured, not answers."""
        return self.knn or self.linear

    def load(self) -> TrainedModel:
        return load_model(
            self.model,
            architecture=self.architecture,
            model_args=self.model_args,
            size=self.size,
            features=self.on_features,
        )

    def load_before(self, trained: TrainedModel) -> TrainedModel | None:
        """The model to compare with; both must be classifiers, which alone have groups."""
        if self.groups and not is_classifier(trained):
            raise InputError(f"--groups is for classifiers, and '{self.model}' was trained for the task {trained.task}")
        return None if self.before is None else load_classifier(self.before, size=self.size, device="cpu")

    @property
    def report_folder(self) -> Path | None:
        run = Path(self.model)
        beside = self.before is not None and (run / RUN).is_file()
        return run / _EVALUATION_FOLDER if self.out is None and beside else self.out

    def data_opener(self, trained: TrainedModel) -> OpenAtSize:
        """Opens the data for the model's task; label pictures are read as is asked for, or else as in training."""
        task = load_task(trained.task)
        return partial(
            open_data,
            self.data,
            split=self.split,
            count=self.count,
            quarantine=self.quarantine,
            targets=task.targets,
            wording=task.wording(),
            val_fraction=trained.val_fraction if self.val_fraction is None else self.val_fraction,
            follow=self.follow,
            **label_reading(trained, self.data, self.ignore, self.reduce_zero_label),
        )


@takes(EvaluateSettings)
def evaluate(settings: EvaluateSettings) -> dict[str, float]:
    """Measure a trained model on held-out images; returns the figures by name.

    For a classifier: top-1 and top-5 accuracy, loss, calibration (ECE with 15 bins), recall and precision of every
    class, which classes are taken for which, and the images it got wrong with the largest confidence. With --out also
    as pictures: the confusion matrix, the reliability diagram, accuracy by size, and the worst mistakes.

    For a detector: COCO's average precision and recall of boxes and, where it gives them, of masks. For a segmenter:
    mean and per-class intersection over union, and pixel accuracy. For keypoints: PCK at a tenth of the object's size,
    and COCO's average precision, around the annotated boxes or, with --boxes, around those that a detector found.

    With --groups: accuracy in every group, their mean, and the worst, which shows whether a classifier relies on
    something that only often goes with the class.

    With --knn or --linear: how well classes can be told from the pooled features, of any classifier of ours or timm's,
    or of a model that learned without labels.

    Examples:
        vitreous evaluate runs/demo shapes
        vitreous evaluate runs/unlabelled shapes --knn --linear
        vitreous evaluate runs/demo shapes:hard --count 500 --sizes 48 64 96 128
        vitreous evaluate runs/flowers/best flowers --split test --json flowers.json --out evaluation
        vitreous evaluate runs/streets streets --slide --scales 0.75 1 1.25 --flip --markdown streets.md
        vitreous evaluate runs/poses coco --flip --boxes person_detections_val2017.json
        vitreous evaluate runs/birds birds --groups place class
        vitreous evaluate runs/mended shapes:corner_mark=0.9 --groups agrees --before runs/marked
    """
    out = settings.report_folder
    for option, file in (("--json", settings.json), ("--markdown", settings.markdown)):
        if file is not None:
            require_writable(option, file)
    with (
        processes(settings.device) as world,
        result_folder(out, _RESULT) if out is not None and world.main else nullcontext() as staging,
    ):
        trained = world.agree(settings.load)
        trained.model.to(world.device)
        earlier = world.agree(lambda: settings.load_before(trained))
        # One it cannot take should show before the work.
        resized = world.agree(lambda: [at_size(trained, side) for side in settings.sizes])
        inference = Inference(settings.flip, settings.scales, settings.slide, boxes=settings.boxes)
        world.agree(lambda: trained.build_task().using(inference))
        opener = world.agree(lambda: settings.data_opener(trained))
        conditions = Conditions(settings.batch_size, settings.workers, world, settings.amp, inference)
        measure = measure_features if settings.on_features else measure_in_detail
        evaluation = measure(trained, settings, opener, conditions)
        extra = tuple(measure_at(version, evaluation, opener, conditions) for version in resized)
        evaluation = evaluation._replace(sizes=extra)
        if earlier is not None:
            evaluation = evaluation._replace(before=measure_before(earlier, settings, opener, conditions, evaluation))
        for grid in report.evaluation_tables(evaluation, most_rows=report.MOST_ROWS):
            Console().print(report.console_table(grid))
        content = {**report.evaluation_json(evaluation), "versions": versions()}
        content |= {} if settings.boxes is None else {"boxes": str(settings.boxes)}
        if settings.json is not None and world.main:
            write_output(settings.json, json_text(content))
        if settings.markdown is not None and world.main:
            write_output(settings.markdown, report.evaluation_markdown(evaluation, {}))
        if staging is not None:
            write_evaluation(staging, evaluation, content)
    if out is not None and staging is not None:
        print(printable(f"report: {out / _REPORT}"))
        if settings.out is None:  # it is in the run's own folder
            refresh_card(settings.model)
    return evaluation.values | {"images_per_second": evaluation.speed.images_per_second} | evaluation.by_group()


def label_reading(trained: TrainedModel, data: str, ignore: tuple[int, ...], reduce_zero_label: bool) -> dict[str, Any]:
    """What the values of label pictures stand for: as is asked for, or else as in training."""
    if ignore or reduce_zero_label:
        return {"ignore": ignore or None, "reduce_zero_label": reduce_zero_label}
    task = trained.build_task()
    return task.reading() if recognise(data, task.targets, task.wording()).class_values else {}


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


def write_evaluation(folder: Path, evaluation: Evaluation, content: dict[str, Any]) -> None:
    drawn = report.draw_evaluation(evaluation)
    for name, (image, _) in drawn.items():
        image.save(folder / name)
    captions = {name: caption for name, (_, caption) in drawn.items()}
    write_text(folder / _REPORT, report.evaluation_markdown(evaluation, captions))
    files = [*drawn, _REPORT]
    matrix = None if evaluation.details is None else report.confusion_csv(evaluation.details)
    if matrix is not None:
        write_text(folder / _MATRIX, matrix)
        files.append(_MATRIX)
    write_json(folder / _RESULT, {**content, "files": files})


def evaluation_loader(
    task: Task,
    images: ImageSet,
    preprocess: Preprocess,
    *,
    batch_size: int,
    workers: int,
    worker_timeout: float = WORKER_TIMEOUT,
    while_waiting: Callable[[], None] = lambda: None,
    first: int | None = None,
    world: World = SINGLE_PROCESS,
) -> Loader:
    """Every image once, in order; several processes take turns, a batch each.

    `first` asks for only so many: the first that can be read.
    """
    count = len(images) if first is None else min(first, len(images))
    sampler = BatchSampler(count, batch_size, rank=world.rank, world=world.size, whole_batches=True)
    return Loader(
        task.dataset(images, task.evaluation_view(preprocess)),
        sampler,
        task.collate,
        workers=workers,
        worker_timeout=worker_timeout,
        replace=first is not None,
        finish=preprocess.normalise_bytes,
        while_waiting=while_waiting,
    )


@torch.no_grad()  # not inference_mode: what a model caches meanwhile must stay usable for training
def score_loader(
    task: Task,
    model: nn.Module,
    loader: Loader,
    world: World,
    amp: str,
    *,
    metric: Metric | None = None,
    label: str | None = None,
    between_batches: Callable[[], None] = lambda: None,
) -> Scores:
    """Loss and metric (default: the task's own) over a loader. `between_batches` may raise to end early.

    With a `label` it shows how far it is. Several processes score their batches apart, and all return the figures of
    all.
    """
    metric, images, start = metric if metric is not None else task.metric(), 0, time.perf_counter()
    terms: list[float] = []  # of the loss: each batch's, times its images
    unreadable: list[Unreadable] = []
    model.eval()
    batches = loader if label is None else track(loader, total=len(loader), label=label, unit="batches")
    for number, batch in enumerate(batches):
        between_batches()
        unreadable += batch.unreadable
        if not batch.indices:
            continue
        ready, targets = loader.on(batch, world.device)
        with autocast(world.device, amp):
            losses, predictions = task.assess(model, ready, targets)
        if number < loader.sampler.counted:
            terms += [loss.item() * len(batch.indices) for loss in losses.values()]
            metric.update(predictions, task.truth(batch.targets) | {"indices": torch.tensor(batch.indices)})
            images += len(batch.indices)
    parts = world.gather((terms, images, unreadable, metric))
    terms, images = [term for part in parts for term in part[0]], sum(part[1] for part in parts)
    unreadable = sorted({one for part in parts for one in part[2]})
    metric = parts[0][3]
    for part in parts[1:]:
        metric.merge(part[3])
    if not images and unreadable:
        raise InputError(f"none of the {len(unreadable)} images can be read; the first: {unreadable[0].reason}")
    seconds = time.perf_counter() - start
    # Rounded once, so that it does not matter how the batches were shared out.
    loss_value = {"loss": math.fsum(terms) / images} if terms else {}
    return Scores(loss_value | metric.compute(), images / seconds, metric, tuple(unreadable))
