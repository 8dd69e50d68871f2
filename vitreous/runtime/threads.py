"""Several pieces of work at once, one thread each, instead of all threads sharing every operation of one piece.

    results = in_threads(work, pieces)                        # work(piece), in the order of the pieces
    for result in map_concurrently(work, tools, pieces):      # work(tool, *piece), each with a tool of its own
        ...

Threads that share an operation wait for each other at its end, hundreds of times in a network; if another program takes
half of one core, the other core waits as well. Threads with a piece of their own never wait.
"""

import copy
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from functools import cache
from queue import SimpleQueue
from threading import Barrier
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.overrides import _get_current_function_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode

MAX_CONCURRENT_PIECES = 4  # with more threads than that, several share each piece

Piece = TypeVar("Piece")
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


if hasattr(os, "register_at_fork"):  # threads stay behind in the parent
    os.register_at_fork(after_in_child=thread_pool.cache_clear)
_of_pool = threading.local()


def set_threads(threads: int) -> None:
    torch.get_num_threads()  # otherwise the first operation would reset it to the default
    torch.set_num_threads(threads)
    _of_pool.member = True


def threads_allowed(x: Tensor) -> bool:
    """Whether other threads would do the same to this tensor: modes that watch or change operations are a thread's own.

    Nor do threads that have a piece share it again.
    """
    watched = _get_current_dispatch_mode() or _get_current_function_mode() or peek_interpreter_stack()
    own = getattr(_of_pool, "member", False) or torch.get_num_threads() < 2
    return not own and watched is None and type(x) in (Tensor, nn.Parameter) and not torch.is_grad_enabled()


def in_threads(work: Callable[[Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
    """The results of all pieces, in order, computed without gradients and in the caller's precision."""
    together = min(concurrent_pieces(), len(pieces))
    if together < 2:
        return [work(piece) for piece in pieces]
    modes = [torch.inference_mode if torch.is_inference_mode_enabled() else torch.no_grad, _same_autocast()]

    def one(piece: Piece) -> Result:
        with modes[0](), modes[1]():
            return work(piece)

    threads = thread_pool(concurrent_pieces(), max(1, torch.get_num_threads() // concurrent_pieces()))
    coming = [threads.submit(one, piece) for piece in pieces]
    try:
        return [future.result() for future in coming]
    finally:
        for future in coming:
            future.cancel()
        wait(coming)


def _same_autocast() -> Callable[[], AbstractContextManager[object]]:
    enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    return lambda: torch.autocast("cpu", dtype=dtype, enabled=enabled)


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
