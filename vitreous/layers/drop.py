"""Stochastic depth: residual branches dropped at random, per sample, more often the deeper they are."""

from collections.abc import Sequence

import numpy as np
from timm.layers import DropPath
from torch import nn


def drop_path(rate: float) -> nn.Module:
    return DropPath(rate) if rate else nn.Identity()


def drop_path_rates(rate: float, depths: Sequence[int]) -> list[list[float]]:
    """Rates rising evenly from 0 to `rate` over all blocks, grouped by stage."""
    rising = iter(np.linspace(0.0, rate, sum(depths)).tolist())
    return [[next(rising) for _ in range(depth)] for depth in depths]
