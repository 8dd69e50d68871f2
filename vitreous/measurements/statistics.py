"""From repeated measurements to figures: median, spread, and ratios of what was measured in the same round."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Spread(NamedTuple):
    """The median of repeated values, and the range of their middle half."""

    middle: float
    low: float
    high: float


def spread_of(values: Sequence[float]) -> Spread:
    low, middle, high = np.percentile(values, (25, 50, 75)).tolist()
    return Spread(middle, low, high)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies, from 0 to 100; between two of them, by their distance."""
    return float(np.percentile(values, share))


def ratio_by_round(numerators: Sequence[float], denominators: Sequence[float], factor: float = 1.0) -> Spread:
    """The spread of the rounds' own ratios: a busy moment of the machine hits both sides of one round alike."""
    return spread_of([factor * n / d for n, d in zip(numerators, denominators, strict=True)])
