"""Progress of long work: a bar with rate and remaining time on a terminal, else a plain line every few seconds.

Everything goes to stderr, so that a verb's output can be piped.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from vitreous.errors import printable

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
    if sys.stderr.isatty():
        yield from _bar(items, total, label, unit)
    else:
        yield from _lines(items, total, label, unit)


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
