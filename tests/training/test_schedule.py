import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitreous.training import schedule
from vitreous.training.schedule import Schedule

whole = st.integers(0, 300)
share = st.floats(0, 1)


def test_example_in_the_docstring():
    assert doctest.testmod(schedule).failed == 0


@given(
    shape=st.sampled_from(["cosine", "poly", "step"]), steps=st.integers(1, 300), warmup=whole, start=share, floor=share
)
def test_rises_then_falls_to_the_floor_and_stays(shape, steps, warmup, start, floor):
    factor = Schedule(shape, steps=steps, warmup=warmup, start=start, floor=floor, milestones=(50, 100), power=0.9)
    warmup = min(warmup, steps)
    factors = [factor(step) for step in range(steps + 20)]
    assert factors[:warmup] == sorted(factors[:warmup])
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)
    assert all(start <= value <= 1 + 1e-9 and value > 0 for value in factors[:warmup])
    assert math.isclose(max(factors), 1) or (shape == "step" and warmup > 0)
    assert factors[steps:] == [floor] * 20


def test_shapes_by_their_formulas():
    cosine = Schedule("cosine", steps=100, floor=0.2)
    assert cosine(25) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)
    poly = Schedule("poly", steps=110, warmup=10, power=0.9)
    assert poly(60) == pytest.approx(0.5**0.9)
    step = Schedule("step", steps=12, milestones=(8, 11), floor=0.05)
    assert [step(number) for number in (0, 7, 8, 10, 11)] == pytest.approx([1, 1, 0.1, 0.1, 0.05])


def test_warm_up_starts_where_it_is_told_to():
    factors = [Schedule("cosine", steps=100, warmup=4, start=0.2)(step) for step in range(4)]
    assert factors == pytest.approx([0.4, 0.6, 0.8, 1.0])
