"""Signals that ask a run to end: recorded at once, obeyed at the next point where the state is consistent."""

import os
import signal
import stat
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

from vitreous.data.loader import STOP_SIGNALS


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
