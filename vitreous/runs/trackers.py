"""Other programs that watch a run. metrics.jsonl is what counts; a tracker only shows it elsewhere.

A new one (Weights & Biases, MLflow, …) is a class with these two methods and a setting that asks for it.
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
}  # of a line: what says where it belongs rather than what was measured


class Tracker(Protocol):
    def log(self, line: dict[str, Any]) -> None:
        """Show a line of metrics.jsonl. When a run is continued, the lines that still count come first, all again."""

    def close(self) -> None: ...


def require_tensorboard() -> None:
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise InputError(f"--tensorboard needs the package tensorboard: {to_install_extra('log')}") from error


class TensorBoard:
    """Scalars named split/metric in a folder for `tensorboard --logdir`.

    Its files are written anew at every start: what was measured after the checkpoint from which a run continues is
    gone, and nothing is there twice. `spent` is the time in seconds that the run has taken so far.
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
            # The time of the measurement, not of the copy, so that TensorBoard's axis of time is right.
            at = self._start + line.get("seconds", 0.0)
            self._writer.add_scalar(f"{line.get('split', 'train')}/{name}", value, line.get("step", 0), walltime=at)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
