"""Accuracy by group: counts, intervals that cover, and differences of two models on the same images."""

import numpy as np
import pytest

from tests.support.classifier_answers import random_answers
from vitreous.metrics.accuracy import DetailedMetrics
from vitreous.metrics.groups import FEW_IMAGES, GroupAccuracy, paired_difference, wilson


def groups_of(members) -> GroupAccuracy:
    names = [f"place={number}" for number in range(3)]
    return GroupAccuracy(names, [{"place": str(number)} for number in range(3)], members)


def test_figures_are_those_of_the_arrays_and_parts_can_be_merged():
    answers, members = random_answers(200, 4), np.arange(200) % 7 % 3
    whole, parts = groups_of(members), [groups_of(members) for _ in range(2)]
    answers.feed(whole, np.arange(200))
    answers.feed(parts[0], np.arange(0, 200, 2))
    answers.feed(parts[1], np.arange(1, 200, 2))
    parts[0].merge(parts[1])
    right = answers.answer == answers.labels
    expected = [right[members == number].mean() for number in range(3)]
    for found in (whole, parts[0]):
        assert [group.accuracy for group in found.per_group()] == pytest.approx(expected)
        assert [group.images for group in found.per_group()] == np.bincount(members).tolist()
        assert found.compute() == pytest.approx({"group_mean": np.mean(expected), "worst_group": min(expected)})
        assert found.worst().values == {"place": str(int(np.argmin(expected)))}
    detailed = DetailedMetrics(tuple("abcd"), worst=0)
    detailed.count_groups(groups_of(members))
    answers.feed(detailed, np.arange(200))
    assert detailed.compute().items() >= whole.compute().items()


def test_groups_without_images_and_small_ones():
    answers = random_answers(40, 4)
    groups = groups_of(np.repeat([0, 1], [35, 5]))
    answers.feed(groups, np.arange(40))
    first, second, empty = groups.per_group()
    assert (first.few, second.few, empty.accuracy) == (False, True, None)
    assert FEW_IMAGES == 30
    assert groups.mean() == pytest.approx((first.accuracy + second.accuracy) / 2)


def test_wilson_is_the_score_interval():
    """Its ends are the shares p for which the observed share is 1.96 standard deviations away."""
    for right, images in ((3, 10), (50, 60), (1, 2), (999, 1000)):
        for end in wilson(right, images):
            assert abs(right / images - end) == pytest.approx(1.959964 * (end * (1 - end) / images) ** 0.5)
    assert wilson(0, 5)[0] == 0
    assert wilson(5, 5)[1] == 1
    assert wilson(0, 0) == (0, 1)


def test_the_paired_interval_covers_the_true_change():
    rng, truth = np.random.default_rng(0), np.array([0.5, 0.25, 0.05, 0.2])  # kept, gained, lost, missed
    covered = 0
    for counts in rng.multinomial(40, truth, size=1000):
        low, high = paired_difference(*map(int, counts))
        covered += low <= truth[1] - truth[2] <= high
    assert 0.93 < covered / 1000 < 0.985
    low, high = paired_difference(500, 100, 100, 300)
    assert -low == pytest.approx(high, abs=0.001)
    assert low < 0 < high
    assert paired_difference(0, 5, 0, 0)[1] <= 1 + 1e-9


def test_changes_are_of_the_images_that_both_models_answered():
    members, answers = np.arange(60) % 3, random_answers(60, 3)
    before, after = groups_of(members), groups_of(members)
    answers.feed(before, np.arange(0, 60))
    answers.feed(after, np.arange(6, 60))
    changes = {change.name: change for change in after.changes_from(before)}
    assert list(changes) == ["all images", "place=0", "place=1", "place=2"]
    assert changes["all images"].images == 54
    for change in changes.values():
        assert change.before == change.after
        assert change.low <= 0 <= change.high
