import numpy as np
import pytest

from tests.support.classifier_answers import random_answers
from vitreous.metrics.detailed import DetailedMetrics, Mistakes


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
    assert left.mistakes.worst == whole.mistakes.worst
    assert left.compute() == pytest.approx(whole.compute(), rel=1e-12)
    assert set(whole.compute()) == {"top1", "top5", "ece"}
