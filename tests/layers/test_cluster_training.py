"""Clusters in training: what is removed, never all; and the terms of the loss, written out in plain torch."""

import math

import pytest
import torch
import torch.nn.functional as F

from vitreous.layers.cluster_training import CLUSTER_TERMS, ClusterTraining, drop_clusters, drop_similar_clusters
from vitreous.layers.clustering import assign


def drawn(B: int = 3, M: int = 4, H: int = 5, W: int = 6) -> torch.Tensor:
    torch.manual_seed(0)
    return assign(2 * torch.randn(B, H, W, M, dtype=torch.float64)).float()


def two_kinds(B: int) -> torch.Tensor:
    """Clusters 0, 1, 2 look left and 3, 4 right: (B, 5, 2, 2)."""
    left, right = torch.tensor([[0.5, 0], [0.5, 0]]), torch.tensor([[0, 0.5], [0, 0.5]])
    return torch.stack([left, left, left, right, right]).expand(B, -1, -1, -1)


def test_terms_are_what_they_say() -> None:
    z = drawn().double()
    M, N = 4, 30
    overlaps, spreads, shares = [], [], []
    for image in z.flatten(2):
        overlaps += [F.cosine_similarity(image[a], image[b], dim=0) for a in range(M) for b in range(M) if a != b]
        spreads += [-(row * row.log()).sum() / math.log(N) for row in image]
        place = image / image.sum(0)  # whose place it is
        shares.append((image.sum(0) / M * -(place * place.log()).sum(0)).sum() / math.log(M))
    for name, values in (("overlap", overlaps), ("map_entropy", spreads), ("place_entropy", shares)):
        assert CLUSTER_TERMS[name](z.float()).item() == pytest.approx(torch.stack(values).mean().item(), rel=1e-5), name


def test_terms_reach_their_ends() -> None:
    flat, apart = torch.full((2, 3, 4, 4), 1 / 16), F.one_hot(torch.arange(3), 16).float().view(1, 3, 4, 4)
    for name, term in CLUSTER_TERMS.items():
        assert term(flat).item() == pytest.approx(1, abs=1e-5), name
        assert term(apart).item() == pytest.approx(0, abs=1e-5), name


def test_slopes_are_finite_where_a_map_is_rounded_to_zero() -> None:
    logits = torch.tensor([[0.0, 200.0], [0.0, -200.0]]).view(1, 2, 1, 2).requires_grad_()
    for name, term in CLUSTER_TERMS.items():
        (slope,) = torch.autograd.grad(term(assign(logits)), logits)
        assert slope.isfinite().all(), name


@pytest.mark.parametrize("shape", [(1, 1, 3, 3), (2, 3, 1, 1), (1, 1, 1, 1)])
def test_one_cluster_or_one_place_is_no_division_by_zero(shape) -> None:
    z = torch.full(shape, 1 / (shape[2] * shape[3]))
    assert all(term(z).isfinite() for term in CLUSTER_TERMS.values())


def test_clusters_are_dropped_as_often_as_asked() -> None:
    torch.manual_seed(0)
    kept = drop_clusters(drawn(4000, 8, 1, 1), 0.3)
    assert set(kept.unique().tolist()) == {0.0, 1.0}
    assert kept.mean().item() == pytest.approx(0.7, abs=0.01)  # 32,000 draws: a standard deviation is 0.0026


@pytest.mark.parametrize("learning", [ClusterTraining(dropout=0.99), ClusterTraining(0.99, 1.0)], ids=str)
def test_never_are_all_dropped(learning) -> None:
    torch.manual_seed(0)
    for maps in (drawn(500, 3), two_kinds(500), torch.full((500, 3, 2, 2), 0.25), drawn(500, 1)):
        assert learning.kept(maps).sum(1).min() >= 1


def test_like_clusters_go_together() -> None:
    torch.manual_seed(0)
    kept = drop_similar_clusters(two_kinds(400), 1.0)
    left, right = (kept == torch.tensor([0, 0, 0, 1, 1.0])).all(1), (kept == torch.tensor([1, 1, 1, 0, 0.0])).all(1)
    assert (left | right).all()
    assert left.float().mean().item() == pytest.approx(0.6, abs=0.1)  # three of five draws; deviation 0.025
    rarely = drop_similar_clusters(two_kinds(4000), 0.2)
    assert (rarely.min(1).values == 0).float().mean().item() == pytest.approx(0.2, abs=0.03)


def test_of_clusters_that_are_all_alike_one_stays() -> None:
    torch.manual_seed(0)
    maps = drawn(50, 1).expand(-1, 4, -1, -1) + 1e-4 * drawn(50, 4)
    assert (drop_similar_clusters(maps, 1.0).sum(1) == 1).all()


def test_temperature_sharpens_and_evens_out() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 4, 5)
    assert torch.equal(assign(logits, 1.0), assign(logits))
    sharp, even = assign(logits, 0.5), assign(logits, 2.0)
    torch.testing.assert_close(sharp, F.normalize(assign(logits).square().flatten(2), p=1, dim=2).view_as(sharp))
    assert (
        CLUSTER_TERMS["map_entropy"](sharp)
        < CLUSTER_TERMS["map_entropy"](assign(logits))
        < CLUSTER_TERMS["map_entropy"](even)
    )
