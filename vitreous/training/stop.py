"""What ends a run early: signals, and failures of a step that the settings or the machine caused.

Signals are recorded at once and obeyed at the next point where the state is consistent; failures become one line.
"""

import os
import signal
import stat
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from vitreous.data.loader import STOP_SIGNALS
from vitreous.errors import InputError, limit_reached


class StopRequested(Exception):
    """Raised between steps, by all processes, after a signal to any of them."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class StopSignals:
    """While the `with` block runs, a stop signal is only recorded in `received`.

    A second SIGINT interrupts at once. SIGHUP, sent when a terminal is lost, stays ignored under nohup. Outside the
    main thread signals are left alone, as Python requires.
    """

    def __init__(self) -> None:
        self.received = 0  # number of the last signal; 0 = none
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in STOP_SIGNALS if hasattr(signal, name)):
                if signal.Signals(number).name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
        if signal.Signals(number).name == "SIGHUP":
            _detach_lost_terminal()


def _detach_lost_terminal() -> None:
    """Redirect output to nowhere: printing to a lost terminal would raise an error before the checkpoint."""
    for handle in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(handle).st_mode) and not os.isatty(handle):  # it was one: pipes and files differ
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, handle)
                os.close(nowhere)


# Parts of torch's messages about the variance of a single value.
SINGLE_VALUE_MESSAGES = ("Expected more than 1 value per channel", "Expected more than 1 spatial element")


@contextmanager
def failures_explained() -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (ValueError, RuntimeError, OSError, MemoryError) as reason:
        if any(words in str(reason) for words in SINGLE_VALUE_MESSAGES):
            raise InputError(
                f"{_norm_in(reason)} normalises over the images of a batch, and gets a single value of each "
                "channel; raise --batch-size to 2 or more, lower --accumulate, raise --size, or take a model without "
                "batch norm"
            ) from reason
        limit = limit_reached(reason)
        if limit is not None:
            raise InputError(f"training stopped: {limit}. Checkpoints are intact") from reason
        raise


def _norm_in(error: BaseException) -> str:
    """The norm layer in which an error arose, by its name in the outermost module of the traceback."""
    holders = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [holder for holder in holders if isinstance(holder, nn.Module)]
    norms = [module for module in modules if isinstance(module, _NormBase)]
    if not norms:
        return "a batch norm of the model"
    name = next(name for name, module in modules[0].named_modules() if module is norms[-1])
    return f"layer '{name}' ({type(norms[-1]).__name__})"
