"""Intervals of means over images."""

import pytest

from vitreous.faithfulness.intervals import bootstrap, bootstrap_counts


def test_counted_values_have_the_interval_of_the_values_themselves():
    counted = bootstrap_counts([-1.0, 0.0, 1.0], [20, 50, 30])
    listed = bootstrap([-1.0] * 20 + [0.0] * 50 + [1.0] * 30)
    assert counted.mean == pytest.approx(0.1)
    assert counted == pytest.approx(listed, abs=0.02)
