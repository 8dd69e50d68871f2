"""What a run shows on the console: one row per epoch, and how fast it goes."""

import time

from rich.console import Console

COLUMN = 12


class EpochTable:
    """Rows under a heading that is printed once."""

    def __init__(self) -> None:
        self.console = Console(soft_wrap=True, highlight=False)
        self._heading: list[str] | None = None

    def row(self, values: dict[str, str], *, mark: bool) -> None:
        """Print a row, preceded by the heading if it is the first; `mark` shows a new best."""
        if self._heading is None:
            self._heading = list(values)
            self.console.print("".join(f"{name:>{COLUMN}}" for name in values), style="bold")
        cells = "".join(f"{value:>{COLUMN}}" for value in values.values())
        self.console.print(cells + ("  best" if mark else ""), style="green" if mark else None)


class Clock:
    """Images per second since it was last asked."""

    def __init__(self) -> None:
        self.images, self._start = 0, time.perf_counter()

    def rate(self) -> float:
        now = time.perf_counter()
        rate = self.images / (now - self._start)
        self.images, self._start = 0, now
        return rate
