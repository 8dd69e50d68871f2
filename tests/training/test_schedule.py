import doctest
import math

from hypothesis import given
from hypothesis import strategies as st

from vitreous.training import schedule
from vitreous.training.schedule import cosine


def test_example_in_the_docstring():
    assert doctest.testmod(schedule).failed == 0


@given(total=st.integers(1, 500), warmup=st.integers(0, 500), floor=st.floats(0, 1))
def test_rises_then_falls_to_the_floor(total, warmup, floor):
    warmup = min(warmup, total)
    factors = [cosine(step, total=total, warmup=warmup, floor=floor) for step in range(total + 1)]
    assert factors[:warmup] == sorted(factors[:warmup])
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)
    assert all(0 < factor <= 1 for factor in factors[:warmup])
    assert math.isclose(max(factors), 1)
    if warmup < total:
        assert math.isclose(factors[-1], floor, abs_tol=1e-12)
