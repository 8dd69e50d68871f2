"""What users see on the console: messages of library code, one row per epoch, how fast a run goes, progress.

Progress of long work is a bar with rate and remaining time on a terminal or in a notebook, else a plain line every few
seconds. It goes to stderr, as messages do, so that a verb's output can be piped.
"""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console

from vitreous.errors import printable

MIN_COLUMN_CHARS = 8  # columns; the usual ones and the mark fit into 80


class _StderrHandler(logging.Handler):
    """Writes bare messages to what `sys.stderr` is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


@contextmanager
def messages_on_stderr() -> Iterator[None]:
    """Show what library code logs, while a verb runs. Otherwise the library is silent, as logging configures it."""
    logger = logging.getLogger("vitreous")
    if any(isinstance(handler, _StderrHandler) for handler in logger.handlers):  # one verb calls another
        yield
        return
    handler, level = _StderrHandler(logging.INFO), logger.level
    logger.addHandler(handler)
    logger.setLevel(min(level, logging.INFO) or logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class EpochTable:
    """Rows under a heading, which is printed once."""

    def __init__(self) -> None:
        self.console = Console(soft_wrap=True, highlight=False)
        self._widths: dict[str, int] = {}

    def row(self, values: dict[str, str], *, mark: bool) -> None:
        """Print a row, and before the first row the heading; `mark` highlights a new best."""
        if not self._widths:
            self._widths = {
                name: max(MIN_COLUMN_CHARS, len(name) + 1, len(value) + 1) for name, value in values.items()
            }
            self.console.print("".join(f"{name:>{width}}" for name, width in self._widths.items()), style="bold")
        cells = "".join(f"{values[name]:>{width}}" for name, width in self._widths.items())
        self.console.print(cells + (" best" if mark else ""), style="green" if mark else None)


class Throughput:
    """Images per second since the last call of `rate`."""

    def __init__(self) -> None:
        self.images, self._start = 0, time.perf_counter()

    def rate(self) -> float:
        now = time.perf_counter()
        rate = self.images / (now - self._start)
        self.images, self._start = 0, now
        return rate


class RemainingTime:
    """How long the remaining steps will take at the average speed since this object was made."""

    def __init__(self, done: int) -> None:
        self._done, self._start = done, time.perf_counter()

    def left(self, done: int, total: int) -> float:
        """Estimated seconds from step `done` to step `total`."""
        return (time.perf_counter() - self._start) * (total - done) / max(done - self._done, 1)


def format_duration(seconds: float) -> str:
    """A time in at most seven characters: 8.4s, 12m05s, 3h20m, 12d03h."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, hours = divmod(round(seconds), 60), divmod(round(seconds / 60), 60)
    if hours[0] < 1:
        return f"{minutes[0]}m{minutes[1]:02d}s"
    if hours[0] < 100:
        return f"{hours[0]}h{hours[1]:02d}m"
    return "{}d{:02d}h".format(*divmod(round(seconds / 3600), 24))


_T = TypeVar("_T")

LINE_INTERVAL_SECONDS = 10.0


def track(items: Iterable[_T], *, total: int | None, label: str, unit: str = "images") -> Iterator[_T]:
    """Yield the items, showing how many are done, how fast, and how much time is left.

    Args:
        items: What is processed, one at a time.
        total: How many there are; None if unknown.
        label: What is being done, as in "drawing train".
        unit: What is counted.
    """
    label = printable(label)
    if sys.stderr.isatty() or in_notebook():
        yield from _bar(items, total, label, unit)
    else:
        yield from _lines(items, total, label, unit)


def in_notebook() -> bool:
    """Whether a notebook shows what is printed: there a bar is drawn below the cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell" or "google.colab" in sys.modules


def _bar(items: Iterable[_T], total: int | None, label: str, unit: str) -> Iterator[_T]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    rate = TextColumn("{task.fields[rate]:>12}", style="dim")
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        rate,
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=total, rate="")
        start = time.monotonic()
        for done, item in enumerate(items, 1):
            yield item
            progress.update(task, completed=done, rate=_rate(done, time.monotonic() - start, unit))


def _lines(items: Iterable[_T], total: int | None, label: str, unit: str) -> Iterator[_T]:
    start = last = time.monotonic()
    done = 0
    for item in items:
        yield item
        done += 1
        now = time.monotonic()
        if now - last >= LINE_INTERVAL_SECONDS and done != total:
            last = now
            print(_line(label, done, total, now - start, unit), file=sys.stderr, flush=True)
    print(_line(label, done, total, time.monotonic() - start, unit), file=sys.stderr, flush=True)


def _line(label: str, done: int, total: int | None, seconds: float, unit: str) -> str:
    of = "" if total is None else f"/{total}"
    left = "" if not total or not done or done >= total else f", {seconds / done * (total - done):.0f} s left"
    return f"{label}: {done}{of} {unit}, {_rate(done, seconds, unit)}{left}"


def _rate(done: int, seconds: float, unit: str) -> str:
    rate = done / max(seconds, 1e-9)
    return f"{rate:.0f} {unit}/s" if rate >= 10 else f"{rate:.1f} {unit}/s"
