"""An atlas of a model's clusters, gathered over a data set; in the same pass, where a cluster fires as in one image.

Pictures are read once to be measured and, of the few regions that are kept, once more to be drawn: between the two only
what `clusters.atlas.Atlas` keeps is in memory, however many pictures there are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitreous.attribution.target import Target
from vitreous.clusters.atlas import Atlas, ClusterMeasurements, TopK, measure_clusters, region_fields
from vitreous.clusters.gates import cluster_count
from vitreous.clusters.layer import Layer
from vitreous.data.image_set import ImageSet
from vitreous.data.pictures import find_pictures
from vitreous.errors import InputError
from vitreous.explanations.best_findings import Tally, best_findings
from vitreous.explanations.dataset import own_part, read_batches, selection
from vitreous.explanations.dense import explained_model_for, inputs_of, inspect_picture, picture_of_pixels
from vitreous.reports.atlas_page import AtlasRegion, regions_of
from vitreous.runs.trained_model import TrainedModel
from vitreous.runtime.distributed import SINGLE_PROCESS, World
from vitreous.tasks.findings import ABSENT, FindingQuery, ModelView

NOT_THERE = "not there"  # the label of an answer that matches no object of the data
MOST_SIMILAR_REGIONS = 16  # regions at most
ASKED_REGION, SIMILAR_REGION = "asked", "like"  # kinds
UNKNOWN_LABEL = -1  # the image is not of the data, or its class is not the model's


@dataclass(frozen=True)
class SimilarityQuery:
    """A region to find the like of, and what was found so far."""

    region: AtlasRegion
    name: str  # of its image
    picture: Image.Image  # as the model sees it
    kept: TopK  # of one row

    def offer(self, measured: ClusterMeasurements, numbers: Tensor, labels: Tensor) -> None:
        cluster = self.region.cluster
        fields = {name: value[[cluster]] for name, value in region_fields(measured, numbers, labels, self.kept).items()}
        self.kept.offer(F.cosine_similarity(fields["token"], self.region.token, dim=-1), fields)

    def found(self) -> list[AtlasRegion]:
        return regions_of(self.kept, 0, self.region.cluster, SIMILAR_REGION)


def gather(
    trained: TrainedModel,
    images: ImageSet,
    layer: Layer,
    *,
    ranking: str,
    limit: int | None,
    batch_size: int,
    query: SimilarityQuery | None = None,
    world: World = SINGLE_PROCESS,
) -> tuple[Atlas, Tally]:
    """Of all images, which several processes divide; and what became of them, where findings are explained."""
    dense, tally = trained.build_task().has_findings, Tally()
    _, own = own_part(selection(len(images), limit), world, batch_size)

    def gather_own_part() -> Atlas:
        atlas = Atlas(cluster_count(trained.model, layer), len(classes_of(trained)))
        batches = (
            measure_findings(trained, images, own, layer, ranking, tally)
            if dense
            else measure_classes(trained, images, own, layer, ranking, batch_size)
        )
        for measured, shown, labels, objects in batches:
            atlas.add(measured, shown, labels, objects)
            if query is not None:
                query.offer(measured, shown, labels)
        return atlas

    (atlas, *later), tallies = world.gather(world.agree(gather_own_part)), world.gather(tally)
    for other in later:
        atlas.join(other)
    if query is not None:
        for found in world.gather(query.kept)[1:]:
            query.kept.join(found)
    tally = sum(tallies, Tally())
    if dense:
        tally.require_findings()
        if tally.images == tally.nothing_found + tally.unknown:
            raise InputError(f"the data say nothing about what was found: {left_out(tally)}")
    return atlas, tally


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


def similarity_query(
    trained: TrainedModel, like: str, cluster: int | None, layer: Layer, ranking: str
) -> SimilarityQuery:
    """The region of a cluster in an image; by default of the cluster that is most important there."""
    pictures = find_pictures([like], size=trained.preprocess.size)
    if len(pictures) != 1:
        raise InputError(f"--like {like} stands for {len(pictures)} images; give one")
    image, label = pictures[0].load(), pictures[0].label
    if not trained.build_task().has_findings:
        seen = trained.preprocess.picture(image)
        found = measure_clusters(trained.model, inputs_of(trained, seen), layer, ranking)
    else:
        inspection = inspect_picture(trained, image, like)
        seen, choice = inspection.view.picture, inspection.choose(FindingQuery())
        if choice.target is None:
            raise InputError(f"--like {like} has nothing to explain: {choice.nothing}; give another image")
        found = measure_finding(trained, inspection.view, choice.target, layer, ranking)
        label = None  # of the whole image, which says nothing about a finding
    clusters = found.importance.shape[1]
    if cluster is not None and not 0 <= cluster < clusters:
        raise InputError(f"--cluster {cluster} does not exist; {layer.name} has clusters 0 to {clusters - 1}")
    chosen = int(found.importance[0].argmax()) if cluster is None else cluster
    own = TopK(clusters, 1)
    known = trained.classes.index(label) if label in trained.classes else UNKNOWN_LABEL
    own.offer(found.importance.T, region_fields(found, torch.tensor([UNKNOWN_LABEL]), torch.tensor([known]), own))
    region = regions_of(own, chosen, chosen, ASKED_REGION)[0]
    return SimilarityQuery(region, pictures[0].name, seen, TopK(1, MOST_SIMILAR_REGIONS))


def measure_finding(
    trained: TrainedModel, view: ModelView, target: Target, layer: Layer, ranking: str
) -> ClusterMeasurements:
    """A finding of a picture; its class is the box's, the region's, or the joint itself."""
    inputs = inputs_of(trained, view.picture)
    own = target.to(inputs.device)
    known = own.tensors()
    answers = known["labels"] if "labels" in known else known["joints"]
    return measure_clusters(explained_model_for(trained, own, view), inputs, layer, ranking, (own, answers))
