"""How good the features of a model are: by their nearest neighbours; `linear_probe` has another way.

Several processes hold a part of the bank each, and all queries; what they find is merged.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitreous.data.image_set import ImageSet
from vitreous.data.loader import Loader, Unreadable
from vitreous.errors import InputError
from vitreous.metrics.neighbours import (
    VOTING_NEIGHBOURS,
    NeighbourAccuracy,
    merge_neighbours,
    nearest_rows,
    unit_rows_,
)
from vitreous.runtime.console import track
from vitreous.runtime.device import autocast
from vitreous.runtime.distributed import World
from vitreous.tasks.base import Task


class LabelledFeatures(NamedTuple):
    rows: Tensor  # (N, C) float32
    labels: Tensor  # (N,)
    unreadable: tuple[Unreadable, ...] = ()


def has_labels(images: ImageSet) -> bool:
    """Whether the data say which class pictures are of."""
    return bool(images.classes) and "labels" in images.target(0)


@torch.no_grad()  # not inference_mode: what a model caches meanwhile must stay usable for training
def labelled_features(
    task: Task,
    model: nn.Module,
    loader: Loader,
    world: World,
    amp: str,
    *,
    label: str,
    between_batches: Callable[[], None] = lambda: None,
) -> LabelledFeatures:
    """Features and labels of the pictures that this process has a turn with; in one piece of memory from the start."""
    model.eval()
    rows, labels = torch.empty(0), torch.empty(loader.sampler.length, dtype=torch.int64)
    filled, unreadable = 0, list[Unreadable]()
    for number, batch in enumerate(track(loader, total=len(loader), label=label, unit="batches")):
        between_batches()
        if number < loader.sampler.counted:
            unreadable += batch.unreadable
        if not batch.indices:
            continue
        images, _ = loader.on(batch, world.device)
        with autocast(world.device, amp):
            found = task.features(model, images).float().cpu()
        if number >= loader.sampler.counted:
            continue
        if not filled:
            share = -(-loader.sampler.length // world.size) + loader.sampler.batch_size
            rows = torch.empty(min(share, loader.sampler.length), found.shape[1])
        rows[filled : filled + len(found)] = found
        labels[filled : filled + len(found)] = batch.targets["labels"]
        filled += len(found)
    return LabelledFeatures(rows[:filled], labels[:filled], tuple(unreadable))


def gathered_features(own: LabelledFeatures, world: World) -> tuple[Tensor, Tensor]:
    """Rows and labels of all processes."""
    parts = world.gather((own.rows, own.labels))
    if world.size == 1:
        return own.rows, own.labels
    rows = [rows for rows, labels in parts if len(labels)]
    return torch.cat(rows) if rows else own.rows, torch.cat([labels for _, labels in parts])


def neighbour_scores(
    bank: LabelledFeatures,
    queries: LabelledFeatures,
    classes: int,
    world: World,
    numbers: tuple[int, ...] = VOTING_NEIGHBOURS,
) -> dict[str, float]:
    """Accuracies by the number of neighbours. Both are this process's parts, and are scaled to unit length."""
    metric = NeighbourAccuracy(classes, numbers)
    unit_rows_(bank.rows)
    unit_rows_(queries.rows)
    everyones = world.gather((queries.rows, queries.labels))
    pictures = sum(world.gather(len(bank.rows)))
    if not pictures or not sum(len(labels) for _, labels in everyones):
        raise InputError("there are no pictures to compare; none could be read")
    most = metric.numbers[-1]
    for rows, labels in everyones:  # one process's queries after the other: all ask their part of the bank
        if not len(labels):
            continue
        own = nearest_rows(bank.rows, bank.labels, rows, most, device=world.device) if len(bank.rows) else None
        found = [part for part in world.gather(own) if part is not None]
        metric.update(found[0] if len(found) == 1 else merge_neighbours(found, most), labels)
    return metric.compute()
