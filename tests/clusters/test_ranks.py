"""Orders and their agreement."""

import torch

from vitreous.clusters.ranks import order_clusters, rank_correlation


def test_rank_puts_the_concentrated_map_first_within_a_tie():
    importance = torch.tensor([0.10, 0.50, 0.101, 0.4995, 0.0])
    spread = torch.tensor([1.0, 3.0, 2.0, 1.0, 0.0])
    assert order_clusters(importance, spread, 0.002) == (3, 1, 0, 2, 4)
    assert order_clusters(importance, spread, 0.0) == (1, 3, 2, 0, 4)
    assert order_clusters(torch.zeros(3), torch.zeros(3), 0.0) == (0, 1, 2)


def test_a_chain_of_near_ties_is_not_one_tie():
    """0.3, 0.2, 0.1 with tolerance 0.1: the last is too far from the first."""
    assert order_clusters(torch.tensor([0.3, 0.205, 0.11]), torch.tensor([3.0, 2.0, 1.0]), 0.1) == (1, 0, 2)


def test_rank_correlation_is_spearmans():
    a = torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 2.0, 0.0], [5.0, 5.0, 5.0, 5.0]])
    b = torch.tensor([[10.0, 20.0, 40.0, 30.0], [3.0, 3.0, 9.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    torch.testing.assert_close(rank_correlation(a, b), torch.tensor([0.8, 1.0, 0.0]))
    torch.testing.assert_close(rank_correlation(a[:2], -b[:2]), torch.tensor([-0.8, -1.0]))
