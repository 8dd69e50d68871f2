"""Signals that ask a run to end: noted at once, obeyed at the next place where the state is whole."""

import signal
import threading
from types import FrameType
from typing import Any

NAMES = ("SIGINT", "SIGTERM", "SIGUSR1")  # the last is what schedulers send before pre-emption


class StopRequested(Exception):
    """Raised between steps, by all processes together, after a signal to any of them."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class StopSignals:
    """While the `with` block runs, a stop signal is only noted in `received`.

    A second SIGINT interrupts at once. Outside the main thread signals are left alone, as Python demands.
    """

    def __init__(self) -> None:
        self.received = 0  # number of the last signal; 0 = none
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for name in NAMES:
                if hasattr(signal, name):
                    number = getattr(signal, name)
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
