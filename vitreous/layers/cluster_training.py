"""What can be asked of clusters while a model learns, so that they carry its decisions and can be told apart.

Clusters can be removed at random, with the meaning that an explanation gives to "removed": the softmax over keys runs
over the others. And what an assignment looks like can be part of the loss:

overlap          mean cosine between two different maps of an image: 0 if no place is shared, 1 if all are equal
map_entropy      how evenly a map is spread over the places: 0 if it is one place, 1 if it is flat
place_entropy    how evenly the clusters that look at a place share it: 0 if each place has one cluster, 1 if all maps
                 are equal; each place counts by how much it is looked at

Shapes: B images, M clusters, H W grid, N = HW.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SAME_GROUP_CORRELATION = 0.7  # (mean) correlation from which on maps are one group, here and in explanations


@dataclass(frozen=True)
class ClusterTraining:
    """How the clusters of a stage are treated in training."""

    dropout: float = 0.0  # how often each cluster is removed
    group_dropout: float = 0.0  # how often a random cluster is removed together with those whose maps are alike
    noted: tuple[str, ...] = ()  # names of terms that the loss will use

    def kept(self, assignment: Tensor) -> Tensor | None:
        """The gate on the clusters of each image, (B, M): 0 for those that are removed. None: all stay."""
        kept = None
        if self.dropout:
            kept = drop_clusters(assignment, self.dropout)
        if self.group_dropout:
            grouped = drop_similar_clusters(assignment, self.group_dropout)
            kept = grouped if kept is None else keep_at_least_one(kept * grouped, grouped)
        return kept

    def terms(self, assignments: Sequence[Tensor]) -> dict[str, Tensor]:
        """Each term, not weighted, as its mean over the assignments (B, M, H, W) that the blocks of a stage made."""
        if not assignments:
            return {}
        return {name: torch.stack([CLUSTER_TERMS[name](z) for z in assignments]).mean() for name in self.noted}


def drop_clusters(assignment: Tensor, rate: float) -> Tensor:
    """Each cluster on its own; where all would go, the last one to go stays."""
    draws = torch.rand(assignment.shape[:2], device=assignment.device)  # (B, M)
    return (draws >= draws.amax(1, keepdim=True).clamp(max=rate)).float()


def drop_similar_clusters(assignment: Tensor, rate: float) -> Tensor:
    """One cluster and those alike; the cluster that is least alike stays whatever it looks like."""
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
    """The gate (B, M), with the most preferred cluster opened in images where it is shut for all."""
    M = kept.shape[1]
    preferred = F.one_hot(preference.argmax(1), M).to(kept)
    return torch.where(kept.any(1, keepdim=True), kept, preferred)


def map_overlap(assignment: Tensor) -> Tensor:
    M = assignment.shape[1]
    unit = F.normalize(assignment.float().flatten(2), dim=2)
    # The square of the sum has every pair twice and every map with itself once: no M x M products are needed.
    pairs = unit.sum(1).square().sum(1) - unit.square().sum((1, 2))  # (B,)
    return pairs.mean() / max(M * (M - 1), 1)


def map_entropy(assignment: Tensor) -> Tensor:
    maps = assignment.float().flatten(2)  # (B, M, N)
    return entropy_nats(maps, 2).mean() / max_entropy(maps.shape[2])


def place_entropy(assignment: Tensor) -> Tensor:
    """The conditional entropy of the cluster, given the place, if every cluster is as likely: joint minus marginal."""
    M = assignment.shape[1]
    joint = assignment.float().flatten(2) / M  # (B, M, N), sums to one
    return (entropy_nats(joint, (1, 2)) - entropy_nats(joint.sum(1), 1)).mean() / max_entropy(M)


def entropy_nats(shares: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """In nats. A share that a softmax rounded to 0 has an infinite slope, and is passed over."""
    return torch.special.entr(shares.clamp_min(torch.finfo(shares.dtype).tiny)).sum(dim)


def max_entropy(count: int) -> float:
    """The entropy of as many even chances. One chance has none, and nothing to be divided by it."""
    return math.log(max(count, 2))


CLUSTER_TERMS: dict[str, Callable[[Tensor], Tensor]] = {
    "overlap": map_overlap,
    "map_entropy": map_entropy,
    "place_entropy": place_entropy,
}
