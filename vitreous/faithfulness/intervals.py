"""Means over images with bootstrap intervals, and whether one mean is above another beyond chance."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vitreous.errors import InputError

RESAMPLES, LEVEL = 2000, 0.95


class Interval(NamedTuple):
    mean: float
    low: float
    high: float


def bootstrap(values: Sequence[float], *, resamples: int = RESAMPLES, level: float = LEVEL, seed: int = 0) -> Interval:
    """Percentile interval of the mean: images are drawn with replacement, as another sample of them might have been."""
    numbers = np.asarray(values, dtype=np.float64)
    if not len(numbers):
        raise InputError("an interval of no values was asked for; score at least one image")
    drawn = np.random.default_rng(seed).integers(len(numbers), size=(resamples, len(numbers)))
    low, high = np.quantile(numbers[drawn].mean(1), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(numbers.mean()), float(low), float(high))


def paired(values: Sequence[float], others: Sequence[float], **options: float) -> Interval:
    """The interval of the mean difference on the same images, narrower than the difference of two intervals."""
    if len(values) != len(others):
        raise InputError(f"{len(values)} values and {len(others)} others given; a pair is needed for each image")
    return bootstrap(np.asarray(values) - np.asarray(others), **options)  # type: ignore[arg-type]


def bootstrap_counts(
    values: Sequence[float], counts: Sequence[int], *, resamples: int = RESAMPLES, level: float = LEVEL, seed: int = 0
) -> Interval:
    """The same of values that occur so often each: few numbers stand for any number of images."""
    numbers, often = np.asarray(values, dtype=np.float64), np.asarray(counts, dtype=np.int64)
    total = int(often.sum())
    if not total:
        raise InputError("an interval of no values was asked for; measure at least one image")
    drawn = np.random.default_rng(seed).multinomial(total, often / total, size=resamples) @ numbers / total
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(often @ numbers / total), float(low), float(high))
