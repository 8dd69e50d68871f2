"""Clusters that look alike, taken together.

Removing one of several like clusters changes nothing, because the others say the same: only the group has a causal
effect. Maps are merged by average linkage of their correlation, and groups or greedily grown sets are removed as one.

Shapes: B images, M clusters, G groups, H W grid.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.attribution.target import Target
from vitreous.clusters.gates import Rest
from vitreous.errors import InputError
from vitreous.layers.cluster_training import SAME_GROUP_CORRELATION


def correlation(maps: Tensor) -> Tensor:
    """Between the maps (M, H, W) of one image: (M, M). A flat map is like no other."""
    flat = maps.float().flatten(1)
    unit = F.normalize(flat - flat.mean(1, keepdim=True), dim=1)
    return unit @ unit.T


def group_maps(maps: Tensor, *, alike: float = SAME_GROUP_CORRELATION, groups: int | None = None) -> Tensor:
    """The group of each of the maps (M, H, W) of one image: (M,) numbers from 0, ordered by first member.

    Args:
        maps: Maps of one image.
        alike: The most similar groups are merged until their mean correlation is below this ...
        groups: ... or, if given, until so many are left. Two always stay, so that each can be removed.
    """
    count = len(maps)
    if groups is not None and not 2 <= groups <= count:
        raise InputError(f"groups={groups} given; {count} clusters form 2 to {count} groups")
    likeness = correlation(maps).double()
    likeness.fill_diagonal_(-torch.inf)
    label, size = torch.arange(count), torch.ones(count, dtype=torch.float64)
    for left in range(count, groups or 2, -1):
        value, place = likeness.flatten().max(0)
        if groups is None and value < alike:
            break
        a, b = sorted(divmod(int(place), count))
        merged = (size[a] * likeness[a] + size[b] * likeness[b]) / (size[a] + size[b])
        likeness[a], likeness[:, a] = merged, merged
        likeness[b], likeness[:, b], likeness[a, a] = -torch.inf, -torch.inf, -torch.inf
        size[a] += size[b]
        label[label == b] = a
        assert len(label.unique()) == left - 1
    return torch.unique(label, return_inverse=True)[1]


def group_gates(label: Tensor) -> Tensor:
    """For each group the gate that removes it: (G, M)."""
    return (label[None] != torch.arange(int(label.max()) + 1)[:, None]).float()


def several(label: Tensor) -> Tensor:
    """Which groups have more than one member: (G,)."""
    return label.bincount() > 1


def ablate_groups(rest: Rest, target: Target, label: Tensor, *, alone: Tensor | None = None) -> Tensor:
    """Log-odds lost when a whole group is removed, for every image of `rest`: (B, G).

    `alone` (B, M) is what single clusters cost, where that is known: groups of one are then not removed again.
    """
    target, gates = target.on("log_odds"), group_gates(label)
    if alone is None:
        return rest.score(target)[:, None] - rest.scores(target, gates)
    joint, lost = several(label), alone[:, (1 - gates).argmax(1)]
    if joint.any():
        lost[:, joint] = rest.score(target)[:, None] - rest.scores(target, gates[joint])
    return lost


def group_sum(maps: Tensor, label: Tensor) -> Tensor:
    """Maps (M, H, W) of the members of each group added: (G, H, W)."""
    summed = maps.new_zeros(int(label.max()) + 1, *maps.shape[1:])
    return summed.index_add(0, label.to(maps.device), maps)


def greedy_set(rest: Rest, target: Target, size: int, *, image: int = 0) -> tuple[list[int], list[float]]:
    """Clusters of one image, each the one whose removal costs most after those before it, and the log-odds left.

    Each step tries all clusters that are left: `size` times the cost of a whole ablation.
    """
    if not 1 <= size < rest.count:
        raise InputError(f"size={size} given; of {rest.count} clusters 1 to {rest.count - 1} can be removed")
    single = Rest(rest.model, rest.images[image : image + 1], rest.layer) if len(rest.images) > 1 else rest
    target = target.select(torch.tensor([image])).on("log_odds")
    removed: list[int] = []
    left: list[float] = []
    for _ in range(size):
        candidates = [m for m in range(rest.count) if m not in removed]
        gates = torch.ones(len(candidates), rest.count)
        gates[:, removed] = 0
        gates[torch.arange(len(candidates)), candidates] = 0
        scores = single.scores(target, gates)[0]
        best = int(scores.argmin())
        removed.append(candidates[best])
        left.append(scores[best].item())
    return removed, left


def effective_rank(maps: Tensor) -> float:
    """How many different maps the M of one image amount to: exp of the entropy of their singular values' shares."""
    values = torch.linalg.svdvals(maps.float().flatten(1))
    return torch.special.entr(values / values.sum()).sum().exp().item()
