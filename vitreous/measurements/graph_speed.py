"""How fast a written graph is beside the model it was made of."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from vitreous.measurements.machine import load_average
from vitreous.measurements.rounds import WARM_UP_RUNS, seconds, turns
from vitreous.measurements.statistics import Spread, ratio_by_round, spread_of


class GraphSpeed(NamedTuple):
    """The graph and the model in turns, at the size that the model was trained with."""

    shape: tuple[int, ...]
    eager: Spread  # seconds
    exported: Spread
    speed_up: Spread  # of the rounds' own ratios

    def row(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "eager_seconds": self.eager._asdict(),
            "exported_seconds": self.exported._asdict(),
            "speed_up": self.speed_up._asdict(),
            "load_average": load_average(),
        }


@torch.inference_mode()
def graph_speed(
    eager: Callable[[Any], object], exported: Callable[[Any], object], shape: tuple[int, ...], rounds: int
) -> GraphSpeed:
    """In turns, so that a busy moment of the machine hits both; the graph is given an array."""
    images = torch.randn(shape)
    array = images.numpy()
    runs: dict[str, Callable[[], object]] = {"eager": lambda: eager(images), "exported": lambda: exported(array)}
    for name in (*runs, *runs) * WARM_UP_RUNS:
        runs[name]()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for name in turns(list(runs), rounds):
        times[name].append(seconds(runs[name]))
    before, after = times["eager"], times["exported"]
    return GraphSpeed(shape, spread_of(before), spread_of(after), ratio_by_round(before, after))
