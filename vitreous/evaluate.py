"""`vitreous evaluate`: a model and data in, figures out. `train` validates with the same `score`."""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from rich.console import Console
from torch import nn

from vitreous.data.annotations import OneBoxEach, OneObjectEach
from vitreous.data.detector_boxes import read_boxes
from vitreous.data.image_set import ImageSet
from vitreous.data.layouts.coco_anywhere import with_annotations
from vitreous.data.loader import WORKER_TIMEOUT, BatchSampler, Loader, Unreadable, worker_failures_explained
from vitreous.data.source import describe, open_data, recognise
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError, printable
from vitreous.files.storage import json_text, write_json
from vitreous.files.writing import write_output, write_text
from vitreous.metrics.accuracy import unique_names
from vitreous.metrics.examination import Examination
from vitreous.reports import evaluation as report
from vitreous.reports.evaluation import AtSize, Evaluation, Speed, WorstMistake
from vitreous.runs.model_folder import TrainedModel, at_size, load_model
from vitreous.runs.relabelled import labelled_for
from vitreous.runs.results import require_numbers, require_writable, result_folder
from vitreous.runs.run_folder import versions
from vitreous.runtime.device import autocast
from vitreous.runtime.distributed import SINGLE_PROCESS, World, processes
from vitreous.runtime.progress import track
from vitreous.tasks.base import Inference, Metric, Task, load_task
from vitreous.tasks.keypoints import Keypoints

Opened = Callable[..., ImageSet]  # the data at a size

RESULT, REPORT, MATRIX = "evaluation.json", "report.md", "confusion.csv"


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
    boxes: Path | None = None  # of a detector, around which keypoints are looked for
    inference: Inference = Inference()


def evaluate(
    model: str,
    data: str,
    *,
    split: str = "val",
    size: int | None = None,
    sizes: tuple[int, ...] = (),
    worst: int = 10,
    flip: bool = False,
    scales: tuple[float, ...] = (),
    slide: bool = False,
    ignore: tuple[int, ...] = (),
    reduce_zero_label: bool = False,
    batch_size: int = 64,
    count: int | None = None,
    quarantine: Path | None = None,
    annotations: tuple[str, ...] = (),
    val_fraction: float | None = None,
    boxes: Path | None = None,
    follow: bool = False,
    workers: int = 2,
    device: str = "auto",
    architecture: str | None = None,
    model_args: tuple[str, ...] = (),
    amp: Literal["off", "bf16", "fp16"] = "off",
    json: Path | None = None,
    markdown: Path | None = None,
    out: Path | None = None,
) -> dict[str, float]:
    """Measure a trained model on held-out images.

    For a classifier: top-1 and top-5 accuracy, loss, calibration (ECE with 15 bins), recall and precision of every
    class, which classes are taken for which, and the images it got wrong with the largest confidence. With --out also
    as pictures: the confusion matrix, the reliability diagram, accuracy by size, and the worst mistakes.

    For a detector: COCO's average precision and recall of boxes and, where it gives them, of masks. For a segmenter:
    mean and per-class intersection over union, and pixel accuracy. For keypoints: PCK at a tenth of the object's size,
    and COCO's average precision, around the annotated boxes or, with --boxes, around those that a detector found.

    Examples:
        vitreous evaluate runs/demo shapes
        vitreous evaluate runs/demo shapes:hard --count 500 --sizes 48 64 96 128
        vitreous evaluate runs/flowers/best flowers --split test --json flowers.json --out evaluation
        vitreous evaluate runs/streets streets --slide --scales 0.75 1 1.25 --flip --markdown streets.md
        vitreous evaluate runs/poses coco --flip --boxes person_detections_val2017.json

    Args:
        model: Run folder, model folder, file of weights (.pth, .safetensors), or model name for its published ones.
        data: shapes, shapes:medium, shapes:hard, a folder with val/<class>/, or another layout: see docs/data.md.
        split: val, test or train.
        size: Height and width in pixels, or the shorter side for detectors and segmenters; default: what the model
            was trained with.
        sizes: Measure at these sizes as well, to see how the model takes images larger or smaller than in training.
        worst: How many of the wrong answers with the largest confidence to list.
        flip: Segmentation and keypoints: the mean with the answer about the mirrored picture.
        scales: Segmentation: the mean over the picture at these scales.
        slide: Segmentation: windows of the size of the training crops, instead of the whole picture at once.
        ignore: Values of label pictures that stand for no class; default: as in training, where that is 255 by default.
        reduce_zero_label: In label pictures 0 stands for no class, and 1 for the first; default: as in training. Of
            these two, one that is given takes the place of both.
        batch_size: Images per forward pass.
        count: How many images of `shapes` to draw.
        quarantine: List of images to leave out; default: quarantine.txt in the data's folder, if there is one.
        annotations: COCO files of the pictures below DATA, as in train.
        val_fraction: Share held out as val of data without splits; default: as in training, and all of it for a model
            that was not trained on such data, such as a published one.
        boxes: Keypoints: a list of COCO's results, or predictions.json of a detector: where it found objects in the
            data. All of them count, with the product of the detector's score and the keypoints' as score.
        follow: Open pictures that the data's own files name outside of the data's folder (.. or an absolute path).
        workers: Processes that prepare images; 0 = the main one does it.
        device: cpu, cuda, cuda:1, mps; auto takes the best there is.
        architecture: Of a file: the name of its model, where it does not tell it itself.
        model_args: Of a file: what its model was built with, where that is not the default, e.g. stem_stride=2.
        amp: Mixed precision.
        json: Write the figures to this file too.
        markdown: Write the tables to this file too.
        out: Write figures, tables and pictures to this folder; an earlier evaluation there is replaced.

    Returns:
        The figures by name.
    """
    data = with_annotations(data, annotations)
    if batch_size < 1:
        raise InputError(f"batch size {batch_size} cannot be used; it must be at least 1")
    if workers < 0:
        raise InputError(f"--workers {workers} cannot be used; give 0 (the main process does it) or more")
    if worst < 0:
        raise InputError(f"--worst {worst} cannot be used; give 0 (none) or more")
    for option, file in (("--json", json), ("--markdown", markdown)):
        if file is not None:
            require_writable(option, file)
    with (
        processes(device) as world,
        result_folder(out, RESULT) if out is not None and world.main else nullcontext() as aside,
    ):
        trained = world.agree(lambda: load_model(model, architecture=architecture, model_args=model_args, size=size))
        trained.model.to(world.device)
        # One it cannot take should show before the work.
        resized = world.agree(lambda: [at_size(trained, side) for side in sizes])
        inference = Inference(flip, scales, slide)
        task = world.agree(lambda: trained.build_task().using(inference))
        if boxes is not None and not isinstance(task, Keypoints):
            raise InputError(f"--boxes {boxes} given; only a model for keypoints asks where objects are")
        reading = world.agree(lambda: label_reading(trained, data, ignore, reduce_zero_label))
        opened = partial(
            open_data,
            data,
            split,
            count=count,
            quarantine=quarantine,
            targets=task.targets,
            val_fraction=trained.val_fraction if val_fraction is None else val_fraction,
            follow=follow,
            wording=task.wording(),
            **reading,
        )
        conditions = Conditions(batch_size, workers, world, amp, boxes, inference)
        evaluation = examine(trained, data, split, opened, worst, conditions)
        extra = tuple(measure_at(version, evaluation, opened, conditions) for version in resized)
        evaluation = evaluation._replace(sizes=extra)
        for grid in report.grids(evaluation, most_rows=report.MOST_ROWS):
            Console().print(report.as_table(grid))
        content = {**report.as_json(evaluation), "versions": versions()}
        content |= {} if boxes is None else {"boxes": str(boxes)}
        if json is not None and world.main:
            write_output(json, json_text(content))
        if markdown is not None and world.main:
            write_output(markdown, report.as_markdown(evaluation, {}))
        if aside is not None:
            write_folder(aside, evaluation, content)
    if out is not None and aside is not None:
        print(printable(f"report: {out / REPORT}"))
    return evaluation.values | {"images_per_second": evaluation.speed.images_per_second}


def label_reading(trained: TrainedModel, data: str, ignore: tuple[int, ...], reduce_zero_label: bool) -> dict[str, Any]:
    """What the values of label pictures stand for: as is asked for, or else as in training."""
    if ignore or reduce_zero_label:
        return {"ignore": ignore or None, "reduce_zero_label": reduce_zero_label}
    task = trained.build_task()
    return task.reading() if recognise(data, task.targets, task.wording()).class_values else {}


def examine(
    trained: TrainedModel, data: str, split: str, opened: Opened, worst: int, conditions: Conditions
) -> Evaluation:
    """Everything there is to tell about a model at its own size."""
    images = conditions.world.agree(lambda: opened(size=trained.preprocess.size))
    print(describe(data, load_task(trained.task).targets, **{split: images}))
    images = conditions.world.agree(lambda: samples_of(trained, images, conditions.boxes))
    if conditions.boxes is not None:
        print(f"boxes: {len(images)}, of {conditions.boxes}")
    scores = measure(trained, images, worst, conditions, label=f"evaluate {trained.name}")
    examination = scores.metric if isinstance(scores.metric, Examination) else None
    device, precision = conditions.world.device, "fp32" if conditions.amp == "off" else conditions.amp
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return Evaluation(
        model=trained.name,
        data=data,
        split=split,
        images=len(images) - len(scores.unreadable),
        size=trained.build_task().input_size(trained.preprocess),
        values=scores.values,
        speed=Speed(
            scores.images_per_second,
            conditions.batch_size,
            name,
            precision,
            torch.get_num_threads(),
            conditions.workers,
        ),
        sizes=(),
        examination=examination,
        metric=scores.metric,
        mistakes=() if examination is None else _named_mistakes(trained, images, examination, f"{data}:{split}"),
        unreadable=tuple((images.name(one.sample), one.reason) for one in scores.unreadable),
    )


def measure_at(trained: TrainedModel, whole: Evaluation, opened: Opened, conditions: Conditions) -> AtSize:
    """The figures at another size; those of the model's own size are there already."""
    size = trained.build_task().input_size(trained.preprocess)
    if size == whole.size:
        return AtSize(size[0], whole.values, whole.speed.images_per_second)
    images = conditions.world.agree(lambda: samples_of(trained, opened(size=trained.preprocess.size), conditions.boxes))
    scores = measure(trained, images, 0, conditions, label=f"evaluate at {size[0]} x {size[1]}")
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


def measure(trained: TrainedModel, images: ImageSet, worst: int, conditions: Conditions, *, label: str) -> Scores:
    task = trained.build_task().using(conditions.inference)
    if isinstance(images, OneBoxEach) and isinstance(task, Keypoints):
        metric = task.metric_on_boxes(images)
    else:
        metric = task.examination(worst)
    loader = evaluation_loader(
        task,
        images,
        trained.preprocess,
        batch_size=conditions.batch_size,
        workers=conditions.workers,
        world=conditions.world,
    )
    try:
        with worker_failures_explained():  # a worker's death may be told in the middle of a forward pass
            scores = score(
                task,
                trained.model,
                loader,
                device=conditions.world.device,
                amp=conditions.amp,
                metric=metric,
                label=label,
                world=conditions.world,
            )
    finally:
        loader.close()
    require_numbers(trained.name, torch.tensor(list(scores.values.values())))
    return scores


def _named_mistakes(
    trained: TrainedModel, images: ImageSet, examination: Examination, samples: str
) -> tuple[WorstMistake, ...]:
    """With the names by which `vitreous explain` takes the images: a path, or a sample of the embedded data."""
    names = unique_names(trained.classes)
    found = []
    for mistake in examination.mistakes.worst:
        stored = images.encoded(mistake.image)
        name = str(stored) if isinstance(stored, Path) else images.name(mistake.image)
        if samples.startswith("shapes:"):
            name = f"{samples}:{mistake.image}"
        seen = trained.preprocess.picture(images.picture(mistake.image))
        found.append(WorstMistake(name, names[mistake.true], names[mistake.answer], mistake.confidence, seen))
    return tuple(found)


def write_folder(folder: Path, evaluation: Evaluation, content: dict[str, Any]) -> None:
    drawn = report.pictures(evaluation)
    for name, (image, _) in drawn.items():
        image.save(folder / name)
    captions = {name: caption for name, (_, caption) in drawn.items()}
    write_text(folder / REPORT, report.as_markdown(evaluation, captions))
    files = [*drawn, REPORT]
    matrix = None if evaluation.examination is None else report.confusion_csv(evaluation.examination)
    if matrix is not None:
        write_text(folder / MATRIX, matrix)
        files.append(MATRIX)
    write_json(folder / RESULT, {**content, "files": files})


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
def score(
    task: Task,
    model: nn.Module,
    loader: Loader,
    *,
    device: torch.device,
    amp: str = "off",
    metric: Metric | None = None,
    label: str | None = "validate",
    between_batches: Callable[[], None] = lambda: None,
    world: World = SINGLE_PROCESS,
) -> Scores:
    """Loss and metric (default: the task's own) over a loader. `between_batches` may raise to end early.

    With a `label` it shows how far it is.

    Several processes score their batches apart, and all return the figures of all.
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
        ready, targets = loader.on(batch, device)
        with autocast(device, amp):
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
