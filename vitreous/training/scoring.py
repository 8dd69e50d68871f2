"""Loss and metric of a model over a loader: `train` validates with it, `evaluate` measures with it."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from vitreous.data.image_set import ImageSet
from vitreous.data.loader import WORKER_TIMEOUT, BatchSampler, Loader, Unreadable
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.runtime.console import track
from vitreous.runtime.device import autocast
from vitreous.runtime.distributed import SINGLE_PROCESS, World
from vitreous.tasks.base import Metric, Task


class Scores(NamedTuple):
    values: dict[str, float]  # loss (where the task gives one) and the metric's figures
    images_per_second: float
    metric: Metric  # for details such as per-class accuracy
    unreadable: tuple[Unreadable, ...] = ()  # images that are no part of the figures


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
