"""One heat map from the clusters of a stage: their maps, weighted by how important each is."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.controls import RandomWeights
from vitreous.attribution.method import Method, Needs
from vitreous.attribution.target import Target
from vitreous.clusters.gates import PartialForward, cluster_layer, maps_of
from vitreous.clusters.groups import SAME_GROUP_CORRELATION, ablate_groups, group_maps, group_sum
from vitreous.clusters.importance import RANKINGS
from vitreous.clusters.ranks import places
from vitreous.errors import InputError


@dataclass(frozen=True)
class ClusterMap(Method):
    """Sum of the cluster maps, each times its importance where that is positive.

    Fields: `by`, a name of `RANKINGS`; `top`, how many of the most important clusters take part (None: all); `stage`,
    from one (None: the last with clusters).
    """

    by: str = "attention_mass"
    top: int | None = None
    stage: int | None = None

    order = 50

    def __post_init__(self) -> None:
        if self.by not in RANKINGS:
            raise InputError(f"by={self.by!r} given; clusters can be ranked by {', '.join(RANKINGS)}")
        if self.top is not None and self.top < 1:
            raise InputError(f"top={self.top} given; at least 1 cluster must take part")

    @property
    def name(self) -> str:
        chosen = [f"{word} {number}" for word, number in (("top", self.top), ("stage", self.stage)) if number]
        return " ".join(["clusters", self.by, *chosen])

    @property
    def summary(self) -> str:
        by = self.by.replace("_", " ")
        if self.top == 1:
            return f"The first cluster of a stage by {by}."
        which = "All clusters" if self.top is None else f"The first {self.top} clusters"
        return f"{which} of a stage, weighted by {by}."

    @property
    def needs(self) -> Needs:
        return RANKINGS[self.by].needs

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        layer = cluster_layer(model, self.stage)
        weights = RANKINGS[self.by](model, images, target, layer)
        if self.top is not None:
            weights = torch.where(places(weights) < self.top, weights, 0.0)
        maps = maps_of(model, images, layer)[1]
        return torch.einsum("bm,bmhw->bhw", F.relu(weights), maps.float())


@dataclass(frozen=True)
class TopGroup(Method):
    """The group of like clusters whose joint removal costs the target most, its maps added."""

    alike: float = SAME_GROUP_CORRELATION
    stage: int | None = None

    order = 50
    name = "cluster_group"
    summary = "The group of similar clusters whose joint removal costs the target most."
    needs = Needs(passes=10, clusters=True)

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        layer = cluster_layer(model, self.stage)
        heat = []
        for b, maps in enumerate(maps_of(model, images, layer)[1].float()):
            label = group_maps(maps, alike=self.alike)
            rest = PartialForward(model, images[b : b + 1], layer)
            lost = ablate_groups(rest, target.select(torch.tensor([b])), label)[0]
            heat.append(group_sum(maps, label)[int(lost.argmax())])
        return torch.stack(heat)


METHODS = (
    ClusterMap("attention_mass"),
    ClusterMap("attention_mass", top=1),
    ClusterMap("logit_gate"),
    ClusterMap("value_gate"),
    ClusterMap("integrated"),
    ClusterMap("ablation", top=1),
    ClusterMap("masking", top=1),
    TopGroup(),
)
CONTROLS = (ClusterMap("random", top=1), RandomWeights(ClusterMap("attention_mass")))
