"""The learning rate as a pure function of the step: nothing to store, nothing to restore."""

import math


def cosine(step: int, *, total: int, warmup: int, floor: float) -> float:
    """Factor on the base learning rate at optimiser step `step` of `total`, counted from 0.

    Rises linearly over `warmup` steps (the first step already learns), then falls along half a cosine to `floor`,
    which it would reach at step `total`.

    >>> [round(cosine(step, total=6, warmup=2, floor=0.0), 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.85, 0.5, 0.15]
    """
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
