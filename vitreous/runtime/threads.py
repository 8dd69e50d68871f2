"""Several pieces of work at a time, one thread each, instead of all threads together in every operation of one piece.

    for result in side_by_side(work, tools, pieces):      # work(tool, *piece), in the order of the pieces
        ...

Threads that share an operation wait for each other at its end, hundreds of times in a network, and where a neighbour
takes half of one core, the other core is left waiting as well. Threads with a piece of their own never wait.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from queue import SimpleQueue
from threading import Barrier
from typing import Any, TypeVar

import torch

MAX_CONCURRENT_PIECES = 4  # pieces at a time; of more threads than that, several share each piece

Tool = TypeVar("Tool")
Result = TypeVar("Result")


def concurrent_pieces() -> int:
    """How many pieces the threads of torch are enough for."""
    return min(MAX_CONCURRENT_PIECES, torch.get_num_threads())


@cache  # threads are kept: matrix libraries do not give back the memory of those that end
def thread_pool(pieces: int, threads: int) -> ThreadPoolExecutor:
    """A thread for each of the pieces, whose operations run on `threads`."""
    before = torch.get_num_threads()
    made = ThreadPoolExecutor(pieces, "side by side", initializer=set_threads, initargs=(threads,))
    all_there = Barrier(pieces)
    list(made.map(lambda _: all_there.wait(), range(pieces)))
    torch.set_num_threads(before)  # the number set last is also what threads to come begin with
    return made


def set_threads(threads: int) -> None:
    torch.get_num_threads()  # else the first operation would set the default, over what is set here
    torch.set_num_threads(threads)


def map_concurrently(
    work: Callable[..., Result], tools: Sequence[Tool], pieces: Iterable[tuple[Any, ...]]
) -> Iterator[Result]:
    """The result of every piece; at no time do two of them hold the same tool.

    While a result is looked at the pieces begun go on, and one more: whoever looks may need the processor too.
    """
    free: SimpleQueue[Tool] = SimpleQueue()
    for tool in tools:
        free.put(tool)

    def one(piece: tuple[Any, ...]) -> Result:
        tool = free.get()
        try:
            return work(tool, *piece)
        finally:
            free.put(tool)

    threads = thread_pool(len(tools), max(1, torch.get_num_threads() // len(tools)))
    coming: deque[Future[Result]] = deque()
    try:
        for piece in pieces:
            coming.append(threads.submit(one, piece))
            if len(coming) > len(tools):
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        for future in coming:
            future.cancel()
        wait(coming)
