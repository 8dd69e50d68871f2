"""One thread that runs the model, a bounded queue before it, and a cache of its answers.

A model that is being explained carries gates and listening taps, so only one question at a time may touch it. Long work
is a generator that yields between its steps, so that what a person is waiting for can be served in between.
"""

import asyncio
import itertools
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable
from concurrent.futures import Future
from typing import Any, NamedTuple

Work = Callable[[], Any]  # returns the answer, or a generator that returns it after some steps


class Busy(Exception):
    """The queue is full."""


class Job(NamedTuple):
    future: Future[Any]
    work: Work
    steps: Generator[None, None, Any] | None = None


class Worker:
    """Runs one job at a time, urgent ones first and otherwise in the order given; at most `waiting` may wait."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.unfinished = 0
        self.lock = threading.Lock()
        self.order = itertools.count()
        self.queue: queue.PriorityQueue[tuple[int, int, Job | None]] = queue.PriorityQueue()
        self.thread = threading.Thread(target=self.run, name="model", daemon=True)
        self.thread.start()

    def submit(self, work: Work, *, later: bool = False) -> Future[Any]:
        with self.lock:
            if self.unfinished > self.waiting:  # the one that runs does not wait
                raise Busy
            self.unfinished += 1
        job = Job(Future(), work)
        self.queue.put((int(later), next(self.order), job))
        return job.future

    def run(self) -> None:
        while True:
            urgency, place, job = self.queue.get()
            if job is None:
                return
            rest = self.step(job)
            if rest is not None:
                self.queue.put((urgency, place, rest))
                continue
            with self.lock:
                self.unfinished -= 1

    def step(self, job: Job) -> Job | None:
        """Run a job, or one step of it; what is left of it, if anything."""
        try:
            if job.steps is None:
                if not job.future.set_running_or_notify_cancel():
                    return None
                result = job.work()
                if isinstance(result, Generator):
                    return job._replace(steps=result)
                job.future.set_result(result)
            else:
                next(job.steps)
                return job
        except StopIteration as end:
            job.future.set_result(end.value)
        except BaseException as error:  # whatever it is, it goes to the one who asked, and the thread goes on
            job.future.set_exception(error)
        return None

    def close(self) -> None:
        """End the thread after the step it is in."""
        self.queue.put((-1, next(self.order), None))
        self.thread.join()


class AnswerCache:
    """Answers in bytes, of which the latest are kept; a question asked while its answer is computed waits for it."""

    def __init__(self, worker: Worker, kept_bytes: int) -> None:
        self.worker, self.kept_bytes = worker, kept_bytes
        self.kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self.size = 0
        self.coming: dict[Hashable, asyncio.Future[bytes]] = {}

    async def get(self, question: Hashable, work: Work, *, later: bool = False) -> bytes:
        if question in self.kept:
            self.kept.move_to_end(question)
            return self.kept[question]
        if question not in self.coming:
            coming = asyncio.wrap_future(self.worker.submit(work, later=later))
            self.coming[question] = coming
            coming.add_done_callback(lambda done: self.keep(question, done))
        return await asyncio.shield(self.coming[question])

    def keep(self, question: Hashable, done: "asyncio.Future[bytes]") -> None:
        del self.coming[question]
        if done.cancelled() or done.exception() is not None:
            return
        self.kept[question] = done.result()
        self.size += len(done.result())
        while self.size > self.kept_bytes and len(self.kept) > 1:
            self.size -= len(self.kept.popitem(last=False)[1])
