import numpy as np
import pytest
import torch

from tests.support.classifier_answers import random_answers
from vitreous.errors import InputError
from vitreous.metrics.accuracy import BINS, Accuracy, Calibration, ClassFigures, DetailedMetrics, Mistakes, unique_names

NAMES = tuple("abcdefg")


@pytest.fixture
def counted():
    answers, metric = random_answers(200, 7), Accuracy(NAMES)
    for part in np.array_split(np.arange(200), 3):
        answers.feed(metric, part)
    return answers, metric


def test_top1_and_top5_equal_three_lines_of_numpy(counted):
    (scores, labels), metric = counted
    ranked = (-scores).argsort(1)
    right = ranked[:, 0] == labels
    assert metric.compute() == {"top1": right.mean(), "top5": (ranked[:, :5] == labels[:, None]).any(1).mean()}


def test_confusion_equals_numpy(counted):
    answers, metric = counted
    expected = np.zeros((7, 7), dtype=int)
    np.add.at(expected, (answers.labels, answers.answer), 1)
    assert (metric.confusion() == expected).all()
    assert (metric.confusion(groups=1) == [[200]]).all()
    pairs = metric.confusion(groups=3)  # classes 0-2, 3-4 and 5-6
    assert pairs[0, 0] == expected[:3, :3].sum()
    assert pairs[2, 1] == expected[5:, 3:5].sum()


def test_per_class_equals_numpy(counted):
    answers, metric = counted
    right = answers.answer == answers.labels
    for label, name in enumerate(NAMES):
        assert metric.per_class()[name] == ClassFigures(
            images=(answers.labels == label).sum(),
            recall=right[answers.labels == label].mean(),
            precision=right[answers.answer == label].mean(),
        )


def test_most_frequent_mistakes(counted):
    _, metric = counted
    matrix = metric.confusion() * (1 - np.eye(7, dtype=int))
    listed = metric.confused(100)
    assert [n for _, _, n in listed] == sorted(matrix[matrix > 0], reverse=True)
    true, answer, n = listed[0]
    assert matrix[NAMES.index(true), NAMES.index(answer)] == n == matrix.max()


def test_few_classes_have_no_top5_and_absent_classes_no_figure():
    metric = Accuracy(("yes", "no", "maybe"))
    metric.update([{"labels": torch.tensor([1, 0])}], {"labels": torch.tensor([0])})
    assert metric.compute() == {"top1": 0.0}
    assert metric.per_class() == {"yes": ClassFigures(1, 0.0, None), "no": ClassFigures(0, None, 0.0)}


def test_classes_that_are_called_alike_stay_apart():
    assert unique_names(("crane", "cat", "crane")) == ["crane (0)", "cat", "crane (2)"]
    metric = Accuracy(("crane", "cat", "crane"))
    metric.update([{"labels": torch.tensor([0])}, {"labels": torch.tensor([0])}], {"labels": torch.tensor([0, 2])})
    assert {name: figures.recall for name, figures in metric.per_class().items()} == {
        "crane (0)": 1.0,
        "crane (2)": 0.0,
    }


def test_nothing_scored_is_an_error_not_a_nan():
    with pytest.raises(InputError, match="no image was scored"):
        Accuracy(("a",)).compute()
    with pytest.raises(InputError, match="0 predictions for 1 targets"):
        Accuracy(("a",)).update([], {"labels": torch.tensor([0])})


# ---- calibration


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


# ---- the worst mistakes, and all of it together


def test_worst_mistakes_are_those_numpy_finds():
    answers, metric = random_answers(300, 5), Mistakes(7)
    for part in np.array_split(np.arange(300), 4):
        answers.feed(metric, part)
    wrong = np.flatnonzero(answers.answer != answers.labels)
    expected = wrong[(-answers.confidence[wrong]).argsort()][:7]
    assert [mistake.image for mistake in metric.worst] == expected.tolist()
    first = metric.worst[0]
    assert (first.true, first.answer) == (answers.labels[expected[0]], answers.answer[expected[0]])
    assert first.confidence == pytest.approx(answers.confidence[wrong].max())


def test_halves_merged_equal_the_whole():
    answers = random_answers(120, 6)
    whole, left, right = (DetailedMetrics(tuple("abcdef"), worst=5) for _ in range(3))
    for metric, part in ((whole, np.arange(120)), (left, np.arange(0, 120, 2)), (right, np.arange(1, 120, 2))):
        answers.feed(metric, part)
    left.merge(right)
    assert left.accuracy.pairs == whole.accuracy.pairs
    assert [row.images for row in left.calibration.bins()] == [row.images for row in whole.calibration.bins()]
    assert left.mistakes.worst == whole.mistakes.worst
    assert left.compute() == pytest.approx(whole.compute(), rel=1e-12)
    assert set(whole.compute()) == {"top1", "top5", "ece"}
