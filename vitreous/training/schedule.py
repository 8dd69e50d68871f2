"""The learning rate as a pure function of the step: nothing to store, nothing to restore."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Schedule:
    """Factor on the highest learning rate at an optimiser step, counted from 0.

    Rises linearly from `start` over `warmup` steps, starting above it, then falls until `steps`: along half a cosine,
    as a power of the remaining share of steps, or in jumps. It never falls below `floor`, and stays there afterwards.

    >>> cosine = Schedule("cosine", steps=6, warmup=2)
    >>> [round(cosine(step), 2) for step in range(8)]
    [0.5, 1.0, 1.0, 0.85, 0.5, 0.15, 0.0, 0.0]
    """

    shape: Literal["cosine", "step", "poly"]
    steps: int
    warmup: int = 0
    start: float = 0.0
    floor: float = 0.0
    milestones: tuple[int, ...] = ()  # of `step`: at each of these steps it is multiplied by `factor`
    factor: float = 0.1
    power: float = 1.0  # of `poly`

    def __call__(self, step: int) -> float:
        warmup = min(self.warmup, self.steps)
        if step < warmup:
            return self.start + (1 - self.start) * (step + 1) / warmup
        if step >= self.steps:
            return self.floor
        if self.shape == "step":
            return max(self.floor, self.factor ** bisect_right(self.milestones, step))
        progress = (step - warmup) / (self.steps - warmup)
        left = (1 - progress) ** self.power if self.shape == "poly" else 0.5 * (1 + math.cos(math.pi * progress))
        return self.floor + (1 - self.floor) * left
