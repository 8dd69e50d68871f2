"""What a run shows on the console: one row per epoch, and how fast it goes."""

import time

from rich.console import Console

NARROWEST = 8  # columns; the usual ones and the mark fit into 80


class EpochTable:
    """Rows under a heading that is printed once."""

    def __init__(self) -> None:
        self.console = Console(soft_wrap=True, highlight=False)
        self._widths: dict[str, int] = {}

    def row(self, values: dict[str, str], *, mark: bool) -> None:
        """Print a row, preceded by the heading if it is the first; `mark` shows a new best."""
        if not self._widths:
            self._widths = {name: max(NARROWEST, len(name) + 1, len(value) + 1) for name, value in values.items()}
            self.console.print("".join(f"{name:>{width}}" for name, width in self._widths.items()), style="bold")
        cells = "".join(f"{values[name]:>{width}}" for name, width in self._widths.items())
        self.console.print(cells + (" best" if mark else ""), style="green" if mark else None)


class Clock:
    """Images per second since it was last asked."""

    def __init__(self) -> None:
        self.images, self._start = 0, time.perf_counter()

    def rate(self) -> float:
        now = time.perf_counter()
        rate = self.images / (now - self._start)
        self.images, self._start = 0, now
        return rate


class Pace:
    """How long the rest will take if it goes on as since this start."""

    def __init__(self, done: int) -> None:
        self._done, self._start = done, time.perf_counter()

    def left(self, done: int, total: int) -> float:
        """Seconds from `done` to `total` steps."""
        return (time.perf_counter() - self._start) * (total - done) / max(done - self._done, 1)


def duration(seconds: float) -> str:
    """A time in at most seven characters, as exact as one needs it: 8.4s, 12m05s, 3h20m, 12d03h."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, hours = divmod(round(seconds), 60), divmod(round(seconds / 60), 60)
    if hours[0] < 1:
        return f"{minutes[0]}m{minutes[1]:02d}s"
    if hours[0] < 100:
        return f"{hours[0]}h{hours[1]:02d}m"
    return "{}d{:02d}h".format(*divmod(round(seconds / 3600), 24))
