"""Figures of known samples."""

import pytest

from vitreous.figures.counting import fitted_power
from vitreous.measurements.rounds import seconds, turns
from vitreous.measurements.statistics import percentile, ratio_by_round, spread_of


def test_percentiles_of_known_samples() -> None:
    samples = [float(number) for number in range(101)]
    assert percentile(samples, 50) == 50
    assert percentile(samples, 95) == 95
    assert spread_of(samples) == (50, 25, 75)
    assert spread_of([3.0]) == (3, 3, 3)


def test_a_ratio_is_that_of_each_round() -> None:
    ours, theirs = [1.0, 2.0, 8.0], [2.0, 4.0, 16.0]  # the machine was busy in the last round
    assert ratio_by_round(theirs, ours) == (2, 2, 2)
    assert ratio_by_round(theirs, ours, 0.5) == (1, 1, 1)
    assert ratio_by_round(ours, ours) == (1, 1, 1)


def test_each_has_its_turn_in_every_round_and_the_order_alternates() -> None:
    order = list(turns(["a", "b", "c"], 4))
    assert order == ["a", "b", "c", "c", "b", "a"] * 2


def test_a_run_is_called_once_to_be_timed() -> None:
    calls: list[int] = []
    assert seconds(lambda: calls.append(1)) >= 0
    assert calls == [1]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_found(power: float) -> None:
    pixels = [224**2, 512**2, 800 * 1216]
    assert fitted_power(pixels, [3e-9 * count**power for count in pixels]) == pytest.approx(power)
