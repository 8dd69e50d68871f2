"""Orders and their agreement."""

import torch
from torch import Tensor


def places(importance: Tensor) -> Tensor:
    """Each value's place in its row (B, M), 0 for the highest; of equal ones the first comes first."""
    return importance.argsort(dim=1, descending=True, stable=True).argsort(dim=1)


def order_clusters(importance: Tensor, entropy: Tensor, tie_tolerance: float = 0.0) -> tuple[int, ...]:
    """Cluster numbers by falling importance (M,); within a tie the more concentrated map comes first.

    "Nearly equal" is not transitive, so ties are groups: each reaches from its best score down to that score minus the
    tolerance. What is still equal keeps the order of the cluster numbers.
    """
    scores, spread = importance.tolist(), entropy.tolist()
    groups: list[list[int]] = []
    for cluster in sorted(range(len(scores)), key=lambda m: -scores[m]):
        if not groups or scores[groups[-1][0]] - scores[cluster] > tie_tolerance:
            groups.append([])
        groups[-1].append(cluster)
    return tuple(m for group in groups for m in sorted(group, key=lambda m: (spread[m], m)))


def mean_ranks(values: Tensor) -> Tensor:
    """Rank of each value within its row (B, N), equal ones sharing their mean."""
    values = values.contiguous()
    ordered = values.sort(dim=1)[0]
    below, upto = torch.searchsorted(ordered, values), torch.searchsorted(ordered, values, right=True)
    return (below + upto - 1).double() / 2


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's, of each row of (B, N) with its fellow: (B,). A row of equal values agrees with nothing: 0."""
    x, y = (ranks - ranks.mean(1, keepdim=True) for ranks in (mean_ranks(a), mean_ranks(b)))
    lengths = x.norm(dim=1) * y.norm(dim=1)
    return torch.where(lengths > 0, (x * y).sum(1) / lengths.clamp_min(1e-12), 0.0).float()
