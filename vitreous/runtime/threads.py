"""Several pieces of work at once, one thread each, instead of all threads sharing every operation of one piece.

    for result in side_by_side(work, tools, pieces):      # work(tool, *piece), in the order of the pieces
        ...

Threads that share an operation wait for each other at its end, hundreds of times in a network; if another program takes
half of one core, the other core waits as well. Threads with a piece of their own never wait.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from queue import SimpleQueue
from threading import Barrier
from typing import Any, TypeVar

import torch
from torch import nn

MAX_CONCURRENT_PIECES = 4  # with more threads than that, several share each piece

Tool = TypeVar("Tool")
Result = TypeVar("Result")
Module = TypeVar("Module", bound=nn.Module)


def concurrent_pieces() -> int:
    """How many pieces to run at once, given the number of torch's threads."""
    return min(MAX_CONCURRENT_PIECES, torch.get_num_threads())


@cache  # matrix libraries never free the memory of threads that end, so threads are reused
def thread_pool(pieces: int, threads: int) -> ThreadPoolExecutor:
    """One thread per piece, each of which runs its operations on `threads` threads."""
    before = torch.get_num_threads()
    made = ThreadPoolExecutor(pieces, "side by side", initializer=set_threads, initargs=(threads,))
    all_there = Barrier(pieces)
    list(made.map(lambda _: all_there.wait(), range(pieces)))
    torch.set_num_threads(before)  # new threads start with the number that was set last
    return made


def set_threads(threads: int) -> None:
    torch.get_num_threads()  # otherwise the first operation would reset it to the default
    torch.set_num_threads(threads)


def twin(model: Module) -> Module:
    """Modules of its own, which another thread may gate and watch; the tensors in them are shared."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def map_concurrently(
    work: Callable[..., Result], tools: Sequence[Tool], pieces: Iterable[tuple[Any, ...]]
) -> Iterator[Result]:
    """The results of all pieces, in order. No two pieces hold the same tool at the same time.

    While the caller uses a result, the started pieces go on, plus one more: the caller may need the processor too.
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
