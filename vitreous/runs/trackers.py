"""Experiment trackers. metrics.jsonl is the record; a tracker only shows it elsewhere.

A new one (Weights & Biases, MLflow, …) is a class with these two methods, and a setting that turns it on.
"""

import time
from pathlib import Path
from typing import Any, Protocol

from vitreous.errors import InputError, to_install_extra

POSITION_FIELDS = {
    "step",
    "epoch",
    "split",
    "seconds",
}  # of a line: its position in the run, not a measurement


class Tracker(Protocol):
    def log(self, line: dict[str, Any]) -> None:
        """Show a line of metrics.jsonl. A continued run first sends all lines that still count again."""

    def close(self) -> None: ...


def require_tensorboard() -> None:
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise InputError(f"--tensorboard needs the package tensorboard: {to_install_extra('log')}") from error


class TensorBoard:
    """Scalars named split/metric in a folder for `tensorboard --logdir`.

    Its files are rewritten at every start, so that a continued run shows no line twice and none that was dropped.
    `spent` is the time in seconds that the run has taken so far.
    """

    def __init__(self, folder: Path, spent: float) -> None:
        require_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        for earlier in folder.glob("events.out.tfevents.*"):
            earlier.unlink()
        self._writer = SummaryWriter(str(folder))
        self._start = time.time() - spent

    def log(self, line: dict[str, Any]) -> None:
        numbers = {
            name: value
            for name, value in line.items()
            if name not in POSITION_FIELDS and isinstance(value, int | float)
        }
        for name, value in numbers.items():
            # The time of the measurement, so that TensorBoard's time axis is right.
            at = self._start + line.get("seconds", 0.0)
            self._writer.add_scalar(f"{line.get('split', 'train')}/{name}", value, line.get("step", 0), walltime=at)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
