"""An atlas of a model's clusters over a data set: streamed, drawn, written.

Pictures are read once to be measured and, of the few regions that are kept, once more to be drawn: between the two only
what `clusters.atlas.Atlas` keeps is in memory, however many pictures there are.

Shapes: B images of a batch.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from vitreous.clusters.atlas import MEASURES, Atlas, Look, look_at
from vitreous.clusters.gates import cluster_count
from vitreous.clusters.masking import Layer
from vitreous.data.image import ImageError
from vitreous.data.image_set import ImageSet
from vitreous.errors import InputError, printable
from vitreous.explanations.atlas_folder import PAGE, RESULT, About, write_folder
from vitreous.explanations.atlas_like import Wish, look_at_finding, wish_for
from vitreous.explanations.best_findings import Tally, best_findings
from vitreous.explanations.dataset import seen_mask, selection
from vitreous.explanations.dense import picture_of_pixels
from vitreous.explanations.explaining import Plan, cluster_layer_of, without_clusters
from vitreous.runs.model_folder import TrainedModel
from vitreous.runs.relabelled import labelled_for
from vitreous.runs.results import report_skipped, result_folder
from vitreous.runtime.progress import track
from vitreous.tasks.findings import ABSENT

NOT_THERE = "not there"  # the label of an answer that no object of the data bears out
MOST_PIXELS = 16 * 224 * 224  # of a batch: with its gradients, paca_tiny then takes 0.6 GB


class Batch(NamedTuple):
    numbers: Tensor  # (B,) of the images within the data
    inputs: Tensor  # (B, 3, height, width)
    labels: Tensor  # (B,)
    objects: Tensor  # (B, height, width), all False where nobody knows


def write_atlas(
    model: str,
    trained: TrainedModel,
    data: str,
    images: ImageSet,
    *,
    split: str,
    limit: int | None,
    measure: str,
    plan: Plan,
    like: str | None,
    cluster: int | None,
    batch_size: int,
    out: Path,
) -> Path:
    """Gather the atlas of a stage, write it and name what stands out."""
    if measure not in MEASURES:
        raise InputError(f"--ranking {measure} cannot be gathered over a data set; --atlas takes {', '.join(MEASURES)}")
    layer, tally = cluster_layer_of(trained.model, plan), Tally()
    if layer is None:
        raise InputError(f"--atlas shows clusters, and {without_clusters(trained.model)}")
    wish = None if like is None else wish_for(trained, like, cluster, layer, measure)
    with result_folder(out, RESULT) as aside:
        images = labelled_for(trained, images)
        atlas = gather(
            trained, images, layer, measure=measure, limit=limit, batch_size=batch_size, wish=wish, tally=tally
        )
        missing = left_out(tally)
        about = About(model, trained, classes_of(trained), data, split, layer, measure, missing)
        told = write_folder(aside, atlas, partial(seen_picture, trained, images), images, about, wish)
    print(printable(f"\n{told}", keep="\n"))
    if missing:
        print(printable(f"left out: {missing}"))
    print(printable(f"atlas: {out / PAGE}"))
    return out / PAGE


def gather(
    trained: TrainedModel,
    images: ImageSet,
    layer: Layer,
    *,
    measure: str,
    limit: int | None,
    batch_size: int,
    wish: Wish | None = None,
    tally: Tally | None = None,
) -> Atlas:
    """`tally` takes down what became of the images where findings are explained."""
    atlas = Atlas(cluster_count(trained.model, layer), len(classes_of(trained)))
    numbers = selection(len(images), limit)
    if trained.build_task().has_findings:
        looks = finding_looks(trained, images, numbers, layer, measure, tally or Tally())
    else:
        looks = class_looks(trained, images, numbers, layer, measure, batch_size)
    for look, shown, labels, objects in looks:
        atlas.add(look, shown, labels, objects)
        if wish is not None:
            wish.offer(look, shown, labels)
    return atlas


def class_looks(
    trained: TrainedModel, images: ImageSet, numbers: Sequence[int], layer: Layer, measure: str, batch_size: int
) -> Iterator[tuple[Look, Tensor, Tensor, Tensor]]:
    done = 0
    for batch in batches(trained, images, numbers, batch_size):
        done += len(batch.numbers)
        look = look_at(trained.model, batch.inputs, layer, measure)
        yield look, batch.numbers, batch.labels, batch.objects
    report_skipped(len(numbers) - done, len(numbers))


def finding_looks(
    trained: TrainedModel, images: ImageSet, numbers: Sequence[int], layer: Layer, measure: str, tally: Tally
) -> Iterator[tuple[Look, Tensor, Tensor, Tensor]]:
    """The best finding of each image. Whether it is right must be known: without that its label would be made up."""
    nowhere = len(classes_of(trained)) - 1
    for found in best_findings(trained, images, numbers, tally, label="atlas"):
        if found.truth.label is None:
            tally.unknown += 1
            continue
        label = nowhere if found.truth.label == ABSENT else found.truth.label
        # What surrounds a joint speaks for it, and is no background.
        known = found.mask if found.truth.outlined else None
        objects = torch.zeros(1, *found.view.size, dtype=torch.bool) if known is None else known
        look = look_at_finding(trained, found.view, found.target, layer, measure)
        yield look, torch.tensor([found.number]), torch.tensor([label]), objects
    if tally.images == tally.nothing_found + tally.unknown:
        raise InputError(f"the data say nothing about what was found: {left_out(tally)}")


def classes_of(trained: TrainedModel) -> tuple[str, ...]:
    """What answers and labels count: classes; of a model that finds things, those or joints, and what is not there."""
    task = trained.build_task()
    return (*task.finding_names, NOT_THERE) if task.has_findings else trained.classes


def left_out(tally: Tally) -> str:
    kinds = {
        "without a finding": tally.nothing_found,
        "of whose finding the data say nothing": tally.unknown,
    }
    return ", ".join(f"{count} {'image' if count == 1 else 'images'} {kind}" for kind, count in kinds.items() if count)


def seen_picture(trained: TrainedModel, images: ImageSet, number: int) -> Image.Image:
    """An image of the data as the model sees it."""
    pixels, _ = trained.build_task().sample(trained.preprocess, images.picture(number), images.target(number))
    return picture_of_pixels(pixels)


def batches(trained: TrainedModel, images: ImageSet, numbers: Sequence[int], batch_size: int) -> Iterator[Batch]:
    """Pictures that can be read, with their labels and, where the data know it, the mask of the object."""
    device, (height, width) = next(trained.model.parameters()).device, trained.preprocess.size
    at_once = max(1, min(batch_size, MOST_PIXELS // (height * width)))
    rows: list[tuple[int, Tensor, int, Tensor]] = []

    def batch() -> Batch:
        found, inputs, labels, objects = zip(*rows, strict=True)
        rows.clear()
        return Batch(torch.tensor(found), torch.stack(inputs).to(device), torch.tensor(labels), torch.stack(objects))

    for number in track(numbers, total=len(numbers), label="atlas"):
        try:
            pixels = trained.preprocess(images.picture(number))
        except ImageError as error:
            print(printable(f"skipped: {error}"), file=sys.stderr)
            continue
        mask = seen_mask(trained.preprocess, images.object_mask(number))
        unknown = torch.zeros(height, width, dtype=torch.bool)
        rows.append((number, pixels, images.target(number)["labels"], unknown if mask is None else mask))
        if len(rows) == at_once:
            yield batch()
    if rows:
        yield batch()
