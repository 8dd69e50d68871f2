"""Where else does a cluster fire as it does in this image? Searched in the same pass that gathers an atlas."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitreous.attribution.target import Target
from vitreous.clusters.atlas import ClusterMeasurements, measure_clusters, region_fields
from vitreous.clusters.layer import Layer
from vitreous.clusters.top_k import TopK
from vitreous.data.pictures import find_pictures
from vitreous.errors import InputError
from vitreous.explanations.dense import explained_model_for, inputs_of, inspect_picture
from vitreous.reports.atlas_regions import Region, regions_of
from vitreous.runs.trained_model import TrainedModel
from vitreous.tasks.findings import FindingQuery, ModelView

MOST_SIMILAR_REGIONS = 16  # regions at most
ASKED_REGION, SIMILAR_REGION = "asked", "like"  # kinds
UNKNOWN_LABEL = -1  # the image is not of the data, or its class is not the model's


@dataclass(frozen=True)
class SimilarityQuery:
    """A region to find the like of, and what was found so far."""

    region: Region
    name: str  # of its image
    picture: Image.Image  # as the model sees it
    kept: TopK  # of one row

    def offer(self, measured: ClusterMeasurements, numbers: Tensor, labels: Tensor) -> None:
        cluster = self.region.cluster
        fields = {name: value[[cluster]] for name, value in region_fields(measured, numbers, labels, self.kept).items()}
        self.kept.offer(F.cosine_similarity(fields["token"], self.region.token, dim=-1), fields)

    def found(self) -> list[Region]:
        return regions_of(self.kept, 0, self.region.cluster, SIMILAR_REGION)


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
