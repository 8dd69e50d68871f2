"""An atlas of a model's clusters, gathered over a data set; in the same pass, where a cluster fires as in one image.

Pictures are read once to be measured and, of the few regions that are kept, once more to be drawn: between the two only
what `clusters.atlas.Atlas` keeps is in memory, however many pictures there are. What was gathered from each portion of
them is on disk until the atlas is complete, so that a kill costs little.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

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
from vitreous.explanations.dataset import batches_of, selection
from vitreous.explanations.dense import explained_model_for, inputs_of, inspect_picture, picture_of_pixels
from vitreous.reports.atlas_page import AtlasRegion, regions_of
from vitreous.runs.result_parts import Part, open_parts, parts_note
from vitreous.runs.results import report_skipped
from vitreous.runs.trained_model import TrainedModel
from vitreous.runtime.distributed import SINGLE_PROCESS, World
from vitreous.tasks.findings import ABSENT, FindingQuery, ModelView

NOT_THERE = "not there"  # the label of an answer that matches no object of the data
MOST_SIMILAR_REGIONS = 16  # regions at most
ASKED_REGION, SIMILAR_REGION = "asked", "like"  # kinds
UNKNOWN_LABEL = -1  # the image is not of the data, or its class is not the model's


@dataclass(frozen=True)
class SimilarityQuery:
    """A region to find the like of."""

    region: AtlasRegion
    name: str  # of its image
    picture: Image.Image  # as the model sees it

    def offer(self, kept: TopK, measured: ClusterMeasurements, numbers: Tensor, labels: Tensor) -> None:
        """Regions of some pictures, for one of the stretches that are searched."""
        cluster = self.region.cluster
        fields = {name: value[[cluster]] for name, value in region_fields(measured, numbers, labels, kept).items()}
        kept.offer(F.cosine_similarity(fields["token"], self.region.token, dim=-1), fields)

    def asked(self) -> dict[str, Any]:
        """What makes it another query if it differs."""
        return {"cluster": self.region.cluster, "like": sha256(self.picture.tobytes()).hexdigest()}

    def found(self, kept: TopK) -> list[AtlasRegion]:
        """What was kept of all pictures."""
        return regions_of(kept, 0, self.region.cluster, SIMILAR_REGION)


@dataclass
class Gathered:
    """What an atlas is made of, of some pictures or of all."""

    atlas: Atlas
    like: TopK  # regions that a query has found
    tally: Tally = field(default_factory=Tally)

    @classmethod
    def empty(cls, trained: TrainedModel, layer: Layer) -> "Gathered":
        clusters, classes = cluster_count(trained.model, layer), len(classes_of(trained))
        return cls(Atlas(clusters, classes), TopK(1, MOST_SIMILAR_REGIONS))

    def stored(self) -> Part:
        numbers = {f"atlas/{name}": value for name, value in self.atlas.stored().items()}
        numbers |= {f"like/{name}": value for name, value in self.like.stored().items()}
        return Part(numbers, asdict(self.tally))

    def restored(self, part: Part, images: Sequence[int]) -> "Gathered":
        """What was gathered from these images, for the same model."""
        clusters, classes = len(self.atlas.strength), len(self.atlas.labelled)
        atlas = Atlas.restored(clusters, classes, beginning("atlas/", part.numbers))
        like = TopK.restored(1, MOST_SIMILAR_REGIONS, beginning("like/", part.numbers))
        for kept in (*atlas.kept.values(), like):
            require_known(kept, images, classes)
        return Gathered(atlas, like, Tally.restored(part.told))

    def add(self, later: "Gathered") -> None:
        self.atlas.join(later.atlas)
        self.like.join(later.like)
        self.tally += later.tally


def gather(
    trained: TrainedModel,
    images: ImageSet,
    layer: Layer,
    *,
    ranking: str,
    limit: int | None,
    batch_size: int,
    out: Path,
    query: SimilarityQuery | None = None,
    world: World = SINGLE_PROCESS,
) -> Gathered | None:
    """Of all images, in parts in `out` that outlive a kill; None on all processes but the first."""
    dense, numbers = trained.build_task().has_findings, selection(len(images), limit)
    settings = {
        "layer": layer._asdict(),
        "ranking": ranking,
        "limit": limit,
        **(query.asked() if query else {"like": None}),
    }
    whole = Gathered.empty(trained, layer)
    note = lambda: parts_note("atlas", trained, images, numbers, batch_size, settings)  # noqa: E731
    parts = open_parts(out, note, numbers, whole.restored, world)

    def work(_: range, portion: Iterator[int]) -> Part:
        found = Gathered.empty(trained, layer)
        batches = (
            measure_findings(trained, images, portion, layer, ranking, found.tally)
            if dense
            else measure_classes(trained, images, portion, layer, ranking, batch_size, found.tally)
        )
        for measured, shown, labels, objects in batches:
            found.atlas.add(measured, shown, labels, objects)
            if query is not None:
                query.offer(found.like, measured, shown, labels)
        return found.stored()

    def check() -> None:
        tally = whole.tally
        if not dense:
            return report_skipped(len(numbers) - tally.images, len(numbers))
        tally.require_findings()
        if tally.images == tally.nothing_found + tally.unknown:
            raise InputError(f"the data say nothing about what was found: {left_out(tally)}")

    parts.fill(work, label="atlas")
    return whole if parts.put_together(whole.add, check) else None


def beginning(start: str, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(start): value for name, value in numbers.items() if name.startswith(start)}


def require_known(kept: TopK, images: Sequence[int], classes: int) -> None:
    """A file may name images and classes that are not there."""
    if not kept.fields:
        return
    taken = kept.score > -torch.inf
    shown, known = set(kept.fields["image"][taken].tolist()), range(classes)
    answers = {*kept.fields["label"][taken].tolist(), *kept.fields["answer"][taken].tolist()}
    if not shown <= set(images) or any(answer not in known for answer in answers):
        raise ValueError("it names images or classes that are not there")


def measure_classes(
    trained: TrainedModel,
    images: ImageSet,
    numbers: Iterable[int],
    layer: Layer,
    ranking: str,
    batch_size: int,
    tally: Tally,
) -> Iterator[tuple[ClusterMeasurements, Tensor, Tensor, Tensor]]:
    for batch in batches_of(trained, images, numbers, batch_size):
        tally.images += len(batch.numbers)
        measured = measure_clusters(trained.model, batch.inputs, layer, ranking)
        yield measured, batch.numbers, batch.labels, batch.objects


def measure_findings(
    trained: TrainedModel, images: ImageSet, numbers: Iterable[int], layer: Layer, ranking: str, tally: Tally
) -> Iterator[tuple[ClusterMeasurements, Tensor, Tensor, Tensor]]:
    """The best finding of each image. Whether it is right must be known: without that its label would be made up."""
    nowhere = len(classes_of(trained)) - 1
    for found in best_findings(trained, images, numbers, tally):
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
    return SimilarityQuery(region, pictures[0].name, seen)


def measure_finding(
    trained: TrainedModel, view: ModelView, target: Target, layer: Layer, ranking: str
) -> ClusterMeasurements:
    """A finding of a picture; its class is the box's, the region's, or the joint itself."""
    inputs = inputs_of(trained, view.picture)
    own = target.to(inputs.device)
    known = own.tensors()
    answers = known["labels"] if "labels" in known else known["joints"]
    return measure_clusters(explained_model_for(trained, own, view), inputs, layer, ranking, (own, answers))
