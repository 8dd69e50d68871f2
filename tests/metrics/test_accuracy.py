import numpy as np
import pytest
import torch

from vitreous.errors import InputError
from vitreous.metrics.accuracy import Accuracy


def answers(scores: np.ndarray) -> list[dict[str, torch.Tensor]]:
    return [{"labels": torch.from_numpy(row.argsort()[::-1].copy())} for row in scores]


def test_equals_three_lines_of_numpy():
    rng = np.random.default_rng(0)
    scores, labels = rng.random((200, 7)), rng.integers(0, 7, 200)
    metric = Accuracy(tuple("abcdefg"))
    for part in np.array_split(np.arange(200), 3):
        metric.update(answers(scores[part]), {"labels": torch.from_numpy(labels[part])})
    ranked = (-scores).argsort(1)
    right = ranked[:, 0] == labels
    assert metric.compute() == {"top1": right.mean(), "top5": (ranked[:, :5] == labels[:, None]).any(1).mean()}
    assert metric.per_class() == {name: right[labels == k].mean() for k, name in enumerate("abcdefg")}


def test_few_classes_have_no_top5_and_absent_classes_no_figure():
    metric = Accuracy(("yes", "no"))
    metric.update([{"labels": torch.tensor([0, 1])}], {"labels": torch.tensor([0])})
    assert metric.compute() == {"top1": 1.0}
    assert metric.per_class() == {"yes": 1.0}


def test_nothing_scored_is_an_error_not_a_nan():
    with pytest.raises(InputError, match="no image was scored"):
        Accuracy(("a",)).compute()
    with pytest.raises(InputError, match="0 predictions for 1 targets"):
        Accuracy(("a",)).update([], {"labels": torch.tensor([0])})
