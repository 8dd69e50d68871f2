"""k-nearest-neighbour classification in features, as DINO and XCiT measure them.

Every query looks for its k nearest pictures of a bank by cosine; these vote for their classes, each with the weight
exp(cosine / temperature). Bank times queries are computed block by block, so that 1.28 million pictures and 50,000
queries take little more memory than their features.

Shapes: N pictures in the bank, Q queries, C features, k neighbours, K classes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitreous.errors import InputError
from vitreous.metrics.figures import Counts

VOTING_NEIGHBOURS = (10, 20, 100, 200)
TEMPERATURE = 0.07
QUERY_BLOCK, BANK_BLOCK = 1024, 1 << 15  # a block of cosines takes 128 MB
MOST_RANKS = 5  # for top-5


class Neighbours(NamedTuple):
    cosines: Tensor  # (Q, k), falling
    labels: Tensor  # (Q, k)


def unit_rows_(features: Tensor) -> Tensor:
    """Rows of length 1, in place: a bank may be half of the memory."""
    for rows in features.split(BANK_BLOCK):
        rows.div_(rows.norm(dim=1, keepdim=True).clamp_min_(1e-12))
    return features


def nearest_rows(
    bank: Tensor,
    labels: Tensor,
    queries: Tensor,
    k: int,
    *,
    device: torch.device | str = "cpu",
    blocks: tuple[int, int] = (QUERY_BLOCK, BANK_BLOCK),
) -> Neighbours:
    """The k nearest rows of a bank (N, C), or all if it has fewer; rows and queries (Q, C) have length 1."""
    k = min(k, len(bank))
    cosines, found = torch.empty(len(queries), k), torch.empty(len(queries), k, dtype=labels.dtype)
    for start in range(0, len(queries), blocks[0]):
        some = queries[start : start + blocks[0]].to(device)
        best: Neighbours | None = None
        for first in range(0, len(bank), blocks[1]):
            rows = bank[first : first + blocks[1]].to(device)
            near, places = (some @ rows.T).topk(min(k, len(rows)), dim=1)
            part = Neighbours(near, labels[first : first + blocks[1]].to(device)[places])
            best = part if best is None else merge_neighbours([best, part], k)
        assert best is not None
        cosines[start : start + blocks[0]], found[start : start + blocks[0]] = best.cosines, best.labels
    return Neighbours(cosines, found)


def merge_neighbours(parts: Sequence[Neighbours], k: int) -> Neighbours:
    """The k nearest of those that were found in parts of a bank."""
    cosines, labels = (torch.cat(column, 1) for column in zip(*parts, strict=True))
    near, places = cosines.topk(min(k, cosines.shape[1]), dim=1)
    return Neighbours(near, labels.gather(1, places))


class NeighbourAccuracy(Counts):
    """Top-1 and top-5 of the votes of the 10, 20, … nearest; of a small bank, as many as it has."""

    counted = ("right", "queries")

    def __init__(
        self, classes: int, numbers: Sequence[int] = VOTING_NEIGHBOURS, temperature: float = TEMPERATURE
    ) -> None:
        if min(numbers, default=0) < 1:
            raise InputError(f"{tuple(numbers)} neighbours asked for; give numbers from 1")
        self.classes, self.numbers, self.temperature = classes, tuple(sorted(set(numbers))), temperature
        self.right, self.queries = torch.zeros(2, len(self.numbers), dtype=torch.int64), 0

    def update(self, neighbours: Neighbours, truth: Tensor) -> None:
        """`truth` (Q): the classes of the queries."""
        for start in range(0, len(truth), QUERY_BLOCK):
            rows = slice(start, start + QUERY_BLOCK)
            self._count(neighbours.cosines[rows], neighbours.labels[rows], truth[rows])

    def _count(self, cosines: Tensor, labels: Tensor, truth: Tensor) -> None:
        weights = (cosines / self.temperature).exp()
        votes, counted = cosines.new_zeros(len(truth), self.classes), 0
        for place, number in enumerate(self.numbers):  # rising: each adds the votes that it has more
            votes.scatter_add_(1, labels[:, counted:number], weights[:, counted:number])
            counted = number
            best = votes.topk(min(MOST_RANKS, self.classes), dim=1)
            ranked = (best.indices == truth[:, None]) & (best.values > 0)  # nobody's candidate is no answer
            self.right[0, place] += ranked[:, 0].sum()
            self.right[1, place] += ranked.any(1).sum()
        self.queries += len(truth)

    def compute(self) -> dict[str, float]:
        shares = self.right / max(1, self.queries)
        figures = {f"knn_{number}": shares[0, place].item() for place, number in enumerate(self.numbers)}
        if self.classes > MOST_RANKS:
            figures |= {f"knn_{number}_top5": shares[1, place].item() for place, number in enumerate(self.numbers)}
        return figures
