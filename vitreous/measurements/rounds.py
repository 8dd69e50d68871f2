"""Several runs timed in turns, so that a busy moment of the machine hits all of them alike."""

import time
from collections.abc import Callable, Iterator, Sequence

import torch

TimedRun = Callable[[], object]
WARM_UP_RUNS = 2  # runs of each that are not timed


def seconds(run: TimedRun, device: torch.device | None = None) -> float:
    """By the clock, until the device has done all of it."""
    start = time.perf_counter()
    run()
    synchronise(device)
    return time.perf_counter() - start


def synchronise(device: torch.device | None) -> None:
    """Wait for what was given to a device that works beside the processor."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device is not None and device.type == "mps":
        torch.mps.synchronize()


def turns(names: Sequence[str], rounds: int) -> Iterator[str]:
    """Each name once a round; every other round backwards, so that none always follows the same one."""
    for number in range(rounds):
        yield from names if number % 2 == 0 else reversed(names)
