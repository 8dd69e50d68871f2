"""Work that stops before every pass through the network until it is its turn again.

A method calls the network as often as it needs and knows nothing of others who wait for it. So a long one runs on a
thread of its own, with a copy of the network that holds the same weights and makes it wait. One of the two threads runs
at any time, never both.
"""

import threading
from collections.abc import Callable, Generator
from queue import SimpleQueue
from typing import Any

from torch import nn

from vitreous.attribution.spatial import share_anatomy
from vitreous.runtime.threads import Result, twin


class Abandoned(BaseException):
    """Nobody wants the result any more."""


class Threads:
    """Threads that are used again, since matrix libraries keep the memory of those that end; as many as are needed."""

    def __init__(self) -> None:
        self.work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.idle = threading.Semaphore(0)

    def start(self, work: Callable[[], None]) -> None:
        if not self.idle.acquire(blocking=False):
            threading.Thread(target=self.run, name="turns", daemon=True).start()
        self.work.put(work)

    def run(self) -> None:
        while True:
            self.work.get()()
            self.idle.release()


_threads = Threads()


class Turn:
    """One thread's right to run, which it gets from another and gives back."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.given, self.given_back = threading.Semaphore(0), threading.Semaphore(0)
        self.begun = self.ended = self.abandoned = False
        self.result: Any = None
        self.error: BaseException | None = None

    def give(self) -> None:
        """Let the work go on until its next stop, or its end."""
        if not self.begun:
            self.begun = True
            _threads.start(self.run)
        self.given.release()
        self.given_back.acquire()

    def stop(self, *_: Any) -> None:
        """Called by the work: wait for the next turn."""
        self.given_back.release()
        self.given.acquire()
        if self.abandoned:
            raise Abandoned

    def run(self) -> None:
        self.given.acquire()
        try:
            self.result = self.work()
        except BaseException as error:  # for the one who gives turns
            self.error = error
        self.ended = True
        self.given_back.release()


def in_turns(work: Callable[[nn.Module], Result], network: nn.Module) -> Generator[None, None, Result]:
    """What `work` gives for a copy of the network, yielding before each pass. One that is closed ends the work."""
    copied = twin(network)
    share_anatomy(copied, network)
    turn = Turn(lambda: work(copied))
    copied.register_forward_pre_hook(turn.stop)
    try:
        turn.give()
        while not turn.ended:
            yield
            turn.give()
    finally:
        if not turn.ended:
            turn.abandoned = True
            turn.give()
    if turn.error is not None:
        raise turn.error
    return turn.result
