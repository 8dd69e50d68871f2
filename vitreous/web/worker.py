"""One thread that runs the model, a bounded queue before it, and a cache of its answers.

A model that is being explained carries gates and listening taps, so only one question at a time may touch it. Long work
is a generator that yields between its steps, so that what a person is waiting for can be served in between. Work whose
future is cancelled ends after the step it is in.
"""

import asyncio
import itertools
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

Work = Callable[[], Any]  # returns the answer, or a generator that returns it after some steps


class Urgency(IntEnum):
    NOW = 0  # a person waits for it
    LATER = 1  # it takes long
    IDLE = 2  # nobody has asked for it


class Busy(Exception):
    """The queue is full."""


@dataclass(eq=False)
class Job:
    work: Work
    urgency: Urgency
    place: int  # among those of the same urgency
    future: Future[Any] = field(default_factory=Future)
    steps: Generator[None, None, Any] | None = None


class Worker:
    """Runs one job at a time, urgent ones first and otherwise in the order given; at most `waiting` may wait."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.unfinished = 0
        self.lock = threading.Lock()
        self.order = itertools.count()
        self.queue: queue.PriorityQueue[tuple[int, int, int, Job | None]] = queue.PriorityQueue()
        self.thread = threading.Thread(target=self.run, name="model", daemon=True)
        self.thread.start()

    def submit(self, work: Work, urgency: Urgency = Urgency.NOW) -> Job:
        with self.lock:
            if self.unfinished > self.waiting:  # the one that runs does not wait
                raise Busy
            self.unfinished += 1
        job = Job(work, urgency, next(self.order))
        job.future.add_done_callback(self.count_finished)
        self.put(job)
        return job

    def hurry(self, job: Job, urgency: Urgency) -> None:
        """Make a job that is on its way as urgent as this, if it is less so."""
        if urgency < job.urgency:
            job.urgency = urgency
            self.put(job)  # a second time: whichever comes first takes a step

    def put(self, job: Job) -> None:
        self.queue.put((job.urgency, job.place, next(self.order), job))

    def count_finished(self, _done: Future[Any]) -> None:
        with self.lock:
            self.unfinished -= 1

    def run(self) -> None:
        while True:
            *_, job = self.queue.get()
            if job is None:
                break
            if not self.step(job):
                self.put(job)
        while not self.queue.empty():
            *_, job = self.queue.get()
            if job is not None:
                job.future.cancel()
                self.step(job)

    def step(self, job: Job) -> bool:
        """Run a job, or one step of it; whether that was the last."""
        try:
            if job.future.done():  # cancelled, or in the queue twice
                if job.steps is not None:
                    job.steps.close()
                return True
            if job.steps is not None:
                next(job.steps)
                return False
            result = job.work()
            if isinstance(result, Generator):
                job.steps = result
                return False
            self.finish(job, result)
        except StopIteration as end:
            self.finish(job, end.value)
        except BaseException as error:  # whatever it is, it goes to the one who asked, and the thread goes on
            with suppress(InvalidStateError):  # cancelled meanwhile
                job.future.set_exception(error)
        return True

    def finish(self, job: Job, answer: Any) -> None:
        with suppress(InvalidStateError):  # cancelled meanwhile
            job.future.set_result(answer)

    def close(self) -> None:
        """End the thread after the step it is in."""
        self.queue.put((-1, 0, 0, None))
        self.thread.join()


@dataclass(eq=False)
class Coming:
    """An answer that is being computed."""

    job: Job
    future: "asyncio.Future[bytes]"
    asking: int = 0  # how many wait for it


class AnswerCache:
    """Answers in bytes, of which the latest are kept; a question asked while its answer is computed waits for it."""

    def __init__(self, worker: Worker, kept_bytes: int) -> None:
        self.worker, self.kept_bytes = worker, kept_bytes
        self.kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self.size = 0
        self.coming: dict[Hashable, Coming] = {}

    async def get(self, question: Hashable, work: Work, urgency: Urgency = Urgency.NOW) -> bytes:
        """The answer. When all who wait for it are cancelled, its computation is, too."""
        if question in self.kept:
            self.kept.move_to_end(question)
            return self.kept[question]
        coming = self.coming.get(question) or self.begin(question, work, urgency)
        self.worker.hurry(coming.job, urgency)
        coming.asking += 1
        try:
            return await asyncio.shield(coming.future)
        finally:
            coming.asking -= 1
            if not coming.asking and not coming.future.done():
                del self.coming[question]
                coming.future.cancel()

    def begin(self, question: Hashable, work: Work, urgency: Urgency) -> Coming:
        job = self.worker.submit(work, urgency)
        coming = self.coming[question] = Coming(job, asyncio.wrap_future(job.future))
        coming.future.add_done_callback(lambda done: self.keep(question, done))
        return coming

    def keep(self, question: Hashable, done: "asyncio.Future[bytes]") -> None:
        if done.cancelled():
            return
        del self.coming[question]
        if done.exception() is not None:
            return
        self.kept[question] = done.result()
        self.size += len(done.result())
        while self.size > self.kept_bytes and len(self.kept) > 1:
            self.size -= len(self.kept.popitem(last=False)[1])
