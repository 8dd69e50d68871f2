"""An atlas of a model's clusters over a data set: streamed, drawn, written.

Pictures are read once to be measured and, of the few regions that are kept, once more to be drawn: between the two only
what `clusters.atlas.Atlas` keeps is in memory, however many pictures there are.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from vitreous.clusters.atlas import ATLAS_RANKINGS, Atlas, ClusterMeasurements, measure_clusters
from vitreous.clusters.gates import cluster_count
from vitreous.clusters.layer import Layer
from vitreous.data.image_set import ImageSet
from vitreous.errors import InputError, printable
from vitreous.explanations.atlas_folder import ATLAS_JSON, ATLAS_PAGE, About, write_atlas_folder
from vitreous.explanations.atlas_like import SimilarityQuery, measure_finding, similarity_query
from vitreous.explanations.best_findings import Tally, best_findings
from vitreous.explanations.dataset import read_batches, selection
from vitreous.explanations.dense import picture_of_pixels
from vitreous.explanations.explaining import Plan, cluster_layer_of, without_clusters
from vitreous.runs.results import result_folder
from vitreous.runs.trained_model import TrainedModel, labelled_for
from vitreous.tasks.findings import ABSENT

NOT_THERE = "not there"  # the label of an answer that matches no object of the data


def write_atlas(
    model: str,
    trained: TrainedModel,
    data: str,
    images: ImageSet,
    *,
    split: str,
    limit: int | None,
    ranking: str,
    plan: Plan,
    like: str | None,
    cluster: int | None,
    batch_size: int,
    out: Path,
) -> Path:
    """Gather the atlas of a stage, write it and name what stands out."""
    if ranking not in ATLAS_RANKINGS:
        raise InputError(
            f"--ranking {ranking} cannot be gathered over a data set; the atlas takes {', '.join(ATLAS_RANKINGS)}"
        )
    layer, tally = cluster_layer_of(trained.model, plan), Tally()
    if layer is None:
        raise InputError(f"an atlas shows clusters, and {without_clusters(trained.model)}")
    query = None if like is None else similarity_query(trained, like, cluster, layer, ranking)
    with result_folder(out, ATLAS_JSON) as staging:
        images = labelled_for(trained, images)
        atlas = gather(
            trained, images, layer, ranking=ranking, limit=limit, batch_size=batch_size, query=query, tally=tally
        )
        missing = left_out(tally)
        about = About(model, trained, classes_of(trained), data, split, layer, ranking, missing)
        findings = write_atlas_folder(staging, atlas, partial(seen_picture, trained, images), images, about, query)
    print(printable(f"\n{findings}", keep="\n"))
    if missing:
        print(printable(f"left out: {missing}"))
    print(printable(f"atlas: {out / ATLAS_PAGE}"))
    return out / ATLAS_PAGE


def gather(
    trained: TrainedModel,
    images: ImageSet,
    layer: Layer,
    *,
    ranking: str,
    limit: int | None,
    batch_size: int,
    query: SimilarityQuery | None = None,
    tally: Tally | None = None,
) -> Atlas:
    """`tally` counts what became of the images, where findings are explained."""
    atlas = Atlas(cluster_count(trained.model, layer), len(classes_of(trained)))
    numbers = selection(len(images), limit)
    if trained.build_task().has_findings:
        batches = measure_findings(trained, images, numbers, layer, ranking, tally or Tally())
    else:
        batches = measure_classes(trained, images, numbers, layer, ranking, batch_size)
    for measured, shown, labels, objects in batches:
        atlas.add(measured, shown, labels, objects)
        if query is not None:
            query.offer(measured, shown, labels)
    return atlas


def measure_classes(
    trained: TrainedModel, images: ImageSet, numbers: Sequence[int], layer: Layer, ranking: str, batch_size: int
) -> Iterator[tuple[ClusterMeasurements, Tensor, Tensor, Tensor]]:
    for batch in read_batches(trained, images, numbers, batch_size, label="atlas"):
        measured = measure_clusters(trained.model, batch.inputs, layer, ranking)
        yield measured, batch.numbers, batch.labels, batch.objects


def measure_findings(
    trained: TrainedModel, images: ImageSet, numbers: Sequence[int], layer: Layer, ranking: str, tally: Tally
) -> Iterator[tuple[ClusterMeasurements, Tensor, Tensor, Tensor]]:
    """The best finding of each image. Whether it is right must be known: without that its label would be made up."""
    nowhere = len(classes_of(trained)) - 1
    for found in best_findings(trained, images, numbers, tally, label="atlas"):
        if found.truth.label is None:
            tally.unknown += 1
            continue
        label = nowhere if found.truth.label == ABSENT else found.truth.label
        # What surrounds a joint is evidence for it, not background.
        known = found.mask if found.truth.outlined else None
        objects = torch.zeros(1, *found.view.size, dtype=torch.bool) if known is None else known
        measured = measure_finding(trained, found.view, found.target, layer, ranking)
        yield measured, torch.tensor([found.number]), torch.tensor([label]), objects
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
