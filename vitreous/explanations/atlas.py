"""An atlas of a model's clusters over a data set: streamed, drawn, written.

Pictures are read once to be measured and, of the few regions that are kept, once more to be drawn: between the two only
what `maps.atlas.Atlas` keeps is in memory, however many pictures there are.

Shapes: B images of a batch.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitreous.data.image import ImageError
from vitreous.data.image_set import ImageSet
from vitreous.data.source import describe, open_data
from vitreous.errors import InputError
from vitreous.explanations.atlas_folder import PAGE, RESULT, About, write_folder
from vitreous.explanations.atlas_like import Wish, wish_for
from vitreous.explanations.dataset import seen_mask, selection
from vitreous.maps.atlas import MEASURES, Atlas, look_at
from vitreous.maps.clusters import Layer
from vitreous.maps.explaining import Plan, cluster_layer_of, without_clusters
from vitreous.maps.gates import cluster_count
from vitreous.training.model_folder import TrainedModel
from vitreous.training.progress import track
from vitreous.training.relabelled import labelled_for
from vitreous.training.results import report_skipped, require_numbers, result_folder

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
    layer = cluster_layer_of(trained.model, plan)
    if layer is None:
        raise InputError(f"--atlas shows clusters, and {without_clusters(trained.model)}")
    wish = None if like is None else wish_for(trained, like, cluster, layer, measure)
    images = labelled_for(trained, open_data(data, split, size=trained.preprocess.size))
    print(describe(data, **{split: images}))
    with result_folder(out, RESULT) as aside:
        atlas = gather(trained, images, layer, measure=measure, limit=limit, batch_size=batch_size, wish=wish)
        about = About(model, trained, data, split, layer, measure)
        told = write_folder(aside, atlas, images, about, wish)
    print(f"\n{told}\natlas: {out / PAGE}")
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
) -> Atlas:
    atlas = Atlas(cluster_count(trained.model, layer), len(trained.classes))
    numbers = selection(len(images), limit)
    for batch in batches(trained, images, numbers, batch_size):
        look = look_at(trained.model, batch.inputs, layer, measure)
        require_numbers(trained.name, look.output)
        atlas.add(look, batch.numbers, batch.labels, batch.objects)
        if wish is not None:
            wish.offer(look, batch.numbers, batch.labels)
    report_skipped(len(numbers) - int(atlas.labelled.sum()), len(numbers))
    return atlas


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
            print(f"skipped: {error}", file=sys.stderr)
            continue
        mask = seen_mask(trained.preprocess, images.object_mask(number))
        unknown = torch.zeros(height, width, dtype=torch.bool)
        rows.append((number, pixels, images.target(number)["labels"], unknown if mask is None else mask))
        if len(rows) == at_once:
            yield batch()
    if rows:
        yield batch()
