"""`vitreous evaluate`: a model and data in, figures out. `train` validates with the same `score`."""

import time
from collections.abc import Callable
from json import dumps
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

from vitreous.data.loader import BatchSampler, Loader
from vitreous.data.source import ImageSet, describe, open_data
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.tasks.base import Metric, Task, load_task
from vitreous.training.device import autocast, choose_device
from vitreous.training.model_folder import TrainedModel, load_model
from vitreous.training.progress import track
from vitreous.training.results import require_writable


class Scores(NamedTuple):
    values: dict[str, float]  # loss (where the task gives one) and the metric's figures
    images_per_second: float
    metric: Metric  # for details such as per-class accuracy


def evaluate(
    model: str,
    data: str,
    *,
    split: str = "val",
    size: int | None = None,
    batch_size: int = 64,
    count: int | None = None,
    workers: int = 2,
    device: str = "auto",
    json: Path | None = None,
) -> dict[str, float]:
    """Measure a trained model on held-out images.

    vitreous evaluate runs/demo shapes
    vitreous evaluate runs/demo shapes:hard --count 500
    vitreous evaluate runs/flowers/best flowers --split test --json flowers.json

    Args:
        model: Run folder, model folder, or model name for its published weights.
        data: shapes, shapes:medium, shapes:hard, or a folder with val/<class>/.
        split: val, test or train.
        size: Height and width in pixels; default: what the model was trained with.
        batch_size: Images per forward pass.
        count: How many images of `shapes` to draw.
        workers: Processes that prepare images; 0 = the main one does it.
        device: cpu, cuda, cuda:1, mps; auto takes the best there is.
        json: Write the figures to this file too.
    """
    if batch_size < 1:
        raise InputError(f"batch size {batch_size} cannot be used; it must be at least 1")
    if workers < 0:
        raise InputError(f"--workers {workers} cannot be used; give 0 (the main process does it) or more")
    if json is not None:
        require_writable("--json", json)
    trained = load_model(model, size=size)
    preprocess = trained.preprocess
    images = open_data(data, split, size=preprocess.size, count=count)
    print(describe(data, **{split: images}))
    task = load_task(trained.task)(trained.classes)
    images = _labelled_for(trained, images)
    loader = evaluation_loader(task, images, preprocess, batch_size=batch_size, workers=workers)
    place = choose_device(device)
    try:
        scores = score(task, trained.model.to(place), loader, device=place, label=f"evaluate {trained.name}")
    finally:
        loader.close()
    Console().print(_table(trained.name, scores))
    result = scores.values | {"images_per_second": scores.images_per_second}
    if json is not None:
        details = {
            "model": str(model),
            "data": data,
            "split": split,
            "images": len(images),
            "size": preprocess.size,
        }
        json.write_text(dumps(details | result | {"per_class": _per_class(scores.metric)}, indent=1) + "\n")
    return result


def evaluation_loader(
    task: Task,
    images: ImageSet,
    preprocess: Preprocess,
    *,
    batch_size: int,
    workers: int,
    rank: int = 0,
    world: int = 1,
) -> Loader:
    """Every image once, in order."""
    sampler = BatchSampler(len(images), batch_size, rank=rank, world=world)
    return Loader(task.dataset(images, preprocess), sampler, task.collate, workers=workers)


@torch.no_grad()  # not inference_mode: what a model caches meanwhile must stay usable for training
def score(
    task: Task,
    model: nn.Module,
    loader: Loader,
    *,
    device: torch.device,
    amp: str = "off",
    label: str = "validate",
    between_batches: Callable[[], None] = lambda: None,
) -> Scores:
    """Loss and metric over a loader. `between_batches` may raise to end early."""
    metric, images, start = task.metric(), 0, time.perf_counter()
    sums: dict[str, float] = {}
    model.eval()
    for batch in track(loader, total=len(loader), label=label, unit="batches"):
        targets = {key: value.to(device, non_blocking=True) for key, value in batch.targets.items()}
        with autocast(device, amp):
            losses, predictions = task.assess(model, batch.images.to(device, non_blocking=True), targets)
        for name, loss in losses.items():
            sums[name] = sums.get(name, 0.0) + loss.item() * len(batch.indices)
        metric.update(predictions, batch.targets)
        images += len(batch.indices)
        between_batches()
    seconds = time.perf_counter() - start
    loss_value = {"loss": sum(sums.values()) / images} if sums else {}
    return Scores(loss_value | metric.compute(), images / seconds, metric)


class _Relabelled:
    """An image set whose labels are positions in the model's class list instead of its own."""

    def __init__(self, images: ImageSet, classes: tuple[str, ...]) -> None:
        self.images, self.classes = images, classes
        self._label = [classes.index(name) for name in images.classes]
        self.fingerprint = images.fingerprint

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Image.Image, dict[str, Any]]:
        image, target = self.images[index]
        return image, target | {"labels": self._label[target["labels"]]}


def _labelled_for(trained: TrainedModel, images: ImageSet) -> ImageSet:
    """Match classes by name: the data may have fewer of them, or another order."""
    if images.classes == trained.classes:
        return images
    known = _synsets(trained) if images.classes[0] not in trained.classes else trained.classes
    unknown = [name for name in images.classes if name not in known]
    if unknown:
        raise InputError(
            f"the model does not know the class {unknown[0]!r} of the data; its classes are "
            f"{', '.join(trained.classes[:8])}{', …' if len(trained.classes) > 8 else ''}; "
            "evaluate on data with the same class names, or train on these"
        )
    return _Relabelled(images, known)


def _synsets(trained: TrainedModel) -> tuple[str, ...]:
    """ImageNet folders are named by WordNet number; published models list readable names in the same order."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(trained.model)
    return tuple(ImageNetInfo(subset).label_names()) if subset is not None else trained.classes


def _per_class(metric: Metric) -> dict[str, float]:
    return metric.per_class() if hasattr(metric, "per_class") else {}


def _table(title: str, scores: Scores) -> Table:
    table = Table("measure", "value", title=Text(title), title_justify="left")
    for name, value in scores.values.items():
        table.add_row(name, f"{value:.4f}" if name == "loss" else f"{value:.2%}")
    table.add_row("images/s", f"{scores.images_per_second:.1f}")
    per_class = _per_class(scores.metric)
    if len(per_class) <= 50:  # longer lists belong in --json
        table.add_section()
        for name, value in per_class.items():
            table.add_row(Text(name), f"{value:.2%}")  # as it is: a string's [brackets] would be taken for markup
    return table
