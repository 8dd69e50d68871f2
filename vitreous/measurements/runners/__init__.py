"""How a model is run: one file each, found by being here. It has a RUNNER.

A runner turns a `Contender` into something that can be called; another program than torch exports the contender's model
first. What it takes to prepare is told beside the figures.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pkgutil import iter_modules

import torch

from vitreous.measurements.contender import Contender, StepKind
from vitreous.tasks.base import Task


class Runner(ABC):
    """One way to run models."""

    name: str  # of --mode
    order = 50  # where lists show it
    steps: tuple[StepKind, ...] = ("infer", "train")
    counted = False  # whether the memory counted by tensors is what it takes; else that of the process is measured

    def require(self, device: torch.device, task: Task) -> None:  # noqa: B027  (most need nothing)
        """Refuse before the work what cannot be done here."""

    @abstractmethod
    def prepare(self, contender: Contender) -> Callable[[], object]:
        """The contender's step, ready to be called again and again."""

    @contextmanager
    def session(self) -> Iterator[None]:
        """Around all contenders of one setting, prepared and run."""
        yield


def load_runners() -> dict[str, Runner]:
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    runners = [module.RUNNER for module in modules if hasattr(module, "RUNNER")]
    return {runner.name: runner for runner in sorted(runners, key=lambda runner: runner.order)}
