"""Nearest neighbours: blocks give what the whole matrix gives, and votes are what the definition says."""

import math

import pytest
import torch
import torch.nn.functional as F

from vitreous.errors import InputError
from vitreous.metrics.neighbours import NeighbourAccuracy, Neighbours, merge_neighbours, nearest_rows, unit_rows_


def example(pictures: int = 230, queries: int = 57, classes: int = 7):
    """Features of classes that overlap, so that not all answers are right."""
    torch.manual_seed(0)
    centres = torch.randn(classes, 12)
    labels, truth = torch.randint(classes, (pictures,)), torch.randint(classes, (queries,))
    bank, rows = (centres[one] + 1.5 * torch.randn(len(one), 12) for one in (labels, truth))
    return bank, labels, rows, truth


def naive(bank, labels, rows, truth, k: int, classes: int, temperature: float = 0.07) -> tuple[float, float]:
    right = [0, 0]
    for row, true in zip(rows, truth, strict=True):
        near = F.cosine_similarity(row[None], bank).sort(descending=True)
        votes = torch.zeros(classes)
        for cosine, place in zip(near.values[:k], near.indices[:k], strict=True):
            votes[labels[place]] += math.exp(cosine / temperature)
        ranked = votes.argsort(descending=True)
        right[0] += int(ranked[0] == true)
        right[1] += int(true in ranked[:5] and votes[true] > 0)
    return right[0] / len(rows), right[1] / len(rows)


@pytest.mark.parametrize("blocks", [(1024, 1 << 15), (10, 32), (57, 7)])
def test_blocks_give_what_the_definition_gives(blocks):
    bank, labels, rows, truth = example()
    found = nearest_rows(unit_rows_(bank.clone()), labels, unit_rows_(rows.clone()), 100, blocks=blocks)
    whole = (F.normalize(rows, dim=1) @ F.normalize(bank, dim=1).T).sort(dim=1, descending=True)
    assert torch.allclose(found.cosines, whole.values[:, :100], atol=1e-6)
    assert torch.equal(found.labels, labels[whole.indices[:, :100]])
    metric = NeighbourAccuracy(7, (10, 20, 100))
    metric.update(found, truth)
    figures = metric.compute()
    for k in (10, 20, 100):
        assert (figures[f"knn_{k}"], figures[f"knn_{k}_top5"]) == pytest.approx(naive(bank, labels, rows, truth, k, 7))
    assert 0.3 < figures["knn_10"] < 1


def test_parts_of_a_bank_and_of_the_queries_add_up():
    bank, labels, rows, truth = example()
    unit_rows_(bank), unit_rows_(rows)
    whole = nearest_rows(bank, labels, rows, 50)
    parts = [nearest_rows(bank[part::3], labels[part::3], rows, 50) for part in range(3)]
    merged = merge_neighbours(parts, 50)
    assert torch.equal(merged.cosines, whole.cosines)
    assert torch.equal(merged.labels, whole.labels)
    one, two, both = (NeighbourAccuracy(7, (5,)) for _ in range(3))
    one.update(Neighbours(whole.cosines[:20], whole.labels[:20]), truth[:20])
    two.update(Neighbours(whole.cosines[20:], whole.labels[20:]), truth[20:])
    both.update(whole, truth)
    one.merge(two)
    assert one.compute() == both.compute()


def test_a_small_bank_has_as_many_neighbours_as_it_has():
    bank, labels, rows, truth = example(pictures=6)
    found = nearest_rows(unit_rows_(bank), labels, unit_rows_(rows), 200)
    assert found.cosines.shape == (57, 6)
    metric = NeighbourAccuracy(7)
    metric.update(found, truth)
    assert metric.compute()["knn_10"] == metric.compute()["knn_200"]
    with pytest.raises(InputError, match="0"):
        NeighbourAccuracy(7, (0,))


def test_a_picture_that_is_in_the_bank_finds_itself():
    bank, labels, _, _ = example()
    metric = NeighbourAccuracy(7, (1,))
    metric.update(nearest_rows(unit_rows_(bank), labels, bank, 1), labels)
    assert metric.compute()["knn_1"] == 1
    assert "knn_1_top5" not in NeighbourAccuracy(5, (1,)).compute(), "of five classes every answer would be right"
