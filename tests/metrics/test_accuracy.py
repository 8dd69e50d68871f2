import numpy as np
import pytest
import torch

from tests.support.classifier_answers import random_answers
from vitreous.errors import InputError
from vitreous.metrics.accuracy import Accuracy, ClassFigures, unique_names

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


def test_halves_merged_equal_the_whole(counted):
    answers, whole = counted
    left, right = Accuracy(NAMES), Accuracy(NAMES)
    answers.feed(left, np.arange(0, 200, 2))
    answers.feed(right, np.arange(1, 200, 2))
    left.merge(right)
    assert left.compute() == whole.compute()
    assert left.pairs == whole.pairs
    assert left.per_class() == whole.per_class()


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
