"""Dropout and loss terms for clusters in training, so that they carry the model's decisions and differ from each other.

Clusters can be removed at random, in the same sense as in explanations: the softmax over keys runs over the others. The
loss can include properties of an assignment:

overlap          mean cosine between two different maps of an image: 0 if they share no position, 1 if all are equal
map_entropy      how evenly a map is spread over positions: 0 for a single position, 1 for a flat map
place_entropy    how evenly clusters share a position: 0 if each position has one cluster, 1 if all maps are equal;
                 positions are weighted by how much the maps attend to them
read_entropy     of a readout: how evenly the classifier reads the clusters: 0 if it reads one, 1 if all alike

Shapes: B images, M clusters, H W grid, N = HW.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SAME_GROUP_CORRELATION = 0.7  # maps with at least this (mean) correlation are one group, here and in explanations


@dataclass(frozen=True)
class ClusterTraining:
    """What training does with the clusters of a stage."""

    dropout: float = 0.0  # probability of removing each cluster
    group_dropout: float = 0.0  # probability of removing a random cluster together with those whose maps are similar
    noted: tuple[str, ...] = ()  # names of terms that the loss uses

    def kept(self, assignment: Tensor) -> Tensor | None:
        """The gate on the clusters of each image, (B, M): 0 for removed clusters. None if all stay."""
        kept = None
        if self.dropout:
            kept = drop_clusters(assignment, self.dropout)
        if self.group_dropout:
            grouped = drop_similar_clusters(assignment, self.group_dropout)
            kept = grouped if kept is None else keep_at_least_one(kept * grouped, grouped)
        return kept

    def terms(self, assignments: Sequence[Tensor]) -> dict[str, Tensor]:
        """Each unweighted term, averaged over the assignments (B, M, H, W) of a stage's blocks."""
        if not assignments:
            return {}
        return {
            name: torch.stack([CLUSTER_TERMS[name](z) for z in assignments]).mean()
            for name in self.noted
            if name in CLUSTER_TERMS
        }


def drop_clusters(assignment: Tensor, rate: float) -> Tensor:
    """Drop clusters independently; if all would be dropped, the last one stays."""
    draws = torch.rand(assignment.shape[:2], device=assignment.device)  # (B, M)
    return (draws >= draws.amax(1, keepdim=True).clamp(max=rate)).float()


def drop_similar_clusters(assignment: Tensor, rate: float) -> Tensor:
    """Drop one random cluster and those similar to it; the least similar cluster always stays."""
    B, M = assignment.shape[:2]
    maps = assignment.detach().float().flatten(2)  # (B, M, N)
    unit = F.normalize(maps - maps.mean(2, keepdim=True), dim=2)
    first = torch.randint(M, (B, 1, 1), device=maps.device)
    likeness = (unit * unit.take_along_dim(first, 1)).sum(2)  # (B, M)
    itself = torch.arange(M, device=maps.device) == first[:, 0]
    alike = (likeness >= SAME_GROUP_CORRELATION) | itself
    hit = torch.rand(B, 1, device=maps.device) < rate
    return keep_at_least_one((~(alike & hit)).float(), -likeness)


def keep_at_least_one(kept: Tensor, preference: Tensor) -> Tensor:
    """The gate (B, M), with the most preferred cluster kept in images where none is."""
    M = kept.shape[1]
    preferred = F.one_hot(preference.argmax(1), M).to(kept)
    return torch.where(kept.any(1, keepdim=True), kept, preferred)


def map_overlap(assignment: Tensor) -> Tensor:
    M = assignment.shape[1]
    unit = F.normalize(assignment.float().flatten(2), dim=2)
    # The square of the sum holds every pair twice and every map with itself once, so no M x M products are needed.
    pairs = unit.sum(1).square().sum(1) - unit.square().sum((1, 2))  # (B,)
    return pairs.mean() / max(M * (M - 1), 1)


def map_entropy(assignment: Tensor) -> Tensor:
    maps = assignment.float().flatten(2)  # (B, M, N)
    return entropy_nats(maps, 2).mean() / max_entropy(maps.shape[2])


def place_entropy(assignment: Tensor) -> Tensor:
    """Conditional entropy of the cluster given the position, for equally likely clusters: joint minus marginal."""
    M = assignment.shape[1]
    joint = assignment.float().flatten(2) / M  # (B, M, N), sums to one
    return (entropy_nats(joint, (1, 2)) - entropy_nats(joint.sum(1), 1)).mean() / max_entropy(M)


def read_entropy(weights: Tensor) -> Tensor:
    """Of the weights (B, M, 1) with which a readout reads its clusters."""
    return entropy_nats(weights.float(), 1).mean() / max_entropy(weights.shape[1])


def entropy_nats(shares: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Entropy in nats. Shares that a softmax rounded to 0 are clamped: their slope is infinite."""
    return torch.special.entr(shares.clamp_min(torch.finfo(shares.dtype).tiny)).sum(dim)


def max_entropy(count: int) -> float:
    """Entropy of a uniform distribution over `count` values; log 2 for one value, to avoid dividing by 0."""
    return math.log(max(count, 2))


READ_TERM = "read_entropy"  # of readouts alone; the others are of assignments, which stages have too
CLUSTER_TERMS: dict[str, Callable[[Tensor], Tensor]] = {
    "overlap": map_overlap,
    "map_entropy": map_entropy,
    "place_entropy": place_entropy,
}
