import numpy as np
import pytest
import torch

from tests.support.classifier_answers import random_answers
from vitreous.metrics.calibration import BINS, Calibration


def test_error_equals_three_lines_of_numpy():
    answers, metric = random_answers(500, 4), Calibration()
    answers.feed(metric, np.arange(500))
    right, confidence = answers.answer == answers.labels, answers.confidence
    place = np.digitize(confidence, np.linspace(0, 1, 16), right=True) - 1
    gaps = [abs(right[place == b].mean() - confidence[place == b].mean()) * (place == b).mean() for b in set(place)]
    assert metric.compute()["ece"] == pytest.approx(sum(gaps), rel=1e-12)  # the order of additions differs
    for b, row in enumerate(metric.bins()):
        assert row.images == (place == b).sum()
        if row.images:
            assert row.low < row.confidence <= row.high
            assert row.accuracy == right[place == b].mean()
        else:
            assert row.accuracy is row.confidence is None


def test_halves_merged_equal_the_whole():
    answers = random_answers(101, 3)
    whole, left, right = Calibration(), Calibration(), Calibration()
    for metric, part in ((whole, np.arange(101)), (left, np.arange(50)), (right, np.arange(50, 101))):
        answers.feed(metric, part)
    left.merge(right)
    assert left.compute()["ece"] == pytest.approx(whole.compute()["ece"], rel=1e-12)
    assert [row.images for row in left.bins()] == [row.images for row in whole.bins()]


def one(confidence: float, right: bool) -> Calibration:
    metric = Calibration()
    prediction = {"labels": torch.tensor([1]), "scores": torch.tensor([confidence])}
    metric.update([prediction], {"labels": torch.tensor([1 if right else 0])})
    return metric


@pytest.mark.parametrize(("confidence", "bin"), [(0.0, 0), (0.0666, 0), (0.0667, 1), (1.0, 14), (1.0000002, 14)])
def test_edges_of_the_bins(confidence, bin):
    assert one(confidence, True).images.nonzero()[0].tolist() == [bin]
    assert BINS == 15


def test_sure_and_wrong_is_as_bad_as_it_gets():
    assert one(1.0, False).compute() == {"ece": 1.0}
    assert one(1.0, True).compute() == {"ece": 0.0}
