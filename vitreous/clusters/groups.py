"""Clusters that look alike, taken together.

Removing one of several similar clusters changes nothing, because the others carry the same: only the group has a causal
effect. Maps are merged by average linkage of their correlation, and groups are removed as one.

Shapes: B images, M clusters, G groups, H W grid.
"""

import torch
from torch import Tensor

from vitreous.attribution.target import Target
from vitreous.clusters.gates import PartialForward
from vitreous.clusters.layer import map_correlation
from vitreous.layers.cluster_training import SAME_GROUP_CORRELATION


def group_maps(maps: Tensor, *, alike: float = SAME_GROUP_CORRELATION) -> Tensor:
    """The group of each of the maps (M, H, W) of one image: (M,) numbers from 0, ordered by first member.

    The most similar groups are merged until their mean correlation is below `alike`. Two always stay, so that each can
    be removed.
    """
    count = len(maps)
    likeness = map_correlation(maps).double()
    likeness.fill_diagonal_(-torch.inf)
    label, size = torch.arange(count), torch.ones(count, dtype=torch.float64)
    for left in range(count, 2, -1):
        value, place = likeness.flatten().max(0)
        if value < alike:
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


def ablate_groups(rest: PartialForward, target: Target, label: Tensor, *, alone: Tensor | None = None) -> Tensor:
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
