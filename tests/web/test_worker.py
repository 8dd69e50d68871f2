"""The model's thread: urgent work first, long work in steps, no more waiting than allowed, no answer computed twice."""

import asyncio
import threading
from functools import partial

import pytest

from vitreous.web.worker import AnswerCache, Busy, Urgency, Worker


@pytest.fixture
def worker():
    worker = Worker(waiting=3)
    yield worker
    worker.close()


class Held:
    """Work that lasts until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.go.wait(30)
        return "held"


def test_urgent_work_overtakes(worker):
    order, held = [], Held()
    first = worker.submit(held)
    assert held.begun.wait(30)
    slow = worker.submit(lambda: order.append("later"), Urgency.LATER)
    quick = worker.submit(lambda: order.append("now"))
    held.go.set()
    for job in (first, slow, quick):
        job.future.result(30)
    assert order == ["now", "later"]


def test_work_is_hurried_by_those_who_wait_for_it(worker):
    order, held = [], Held()
    worker.submit(held)
    assert held.begun.wait(30)
    idle = worker.submit(lambda: order.append("idle"), Urgency.IDLE)
    later = worker.submit(lambda: order.append("later"), Urgency.LATER)
    worker.hurry(idle, Urgency.NOW)
    worker.hurry(idle, Urgency.LATER)  # it is more urgent already
    held.go.set()
    for job in (idle, later):
        job.future.result(30)
    assert order == ["idle", "later"]


def test_cancelled_work_ends_after_its_step_and_leaves_room(worker):
    order, begun, go = [], threading.Event(), threading.Event()

    def steps():
        try:
            begun.set()
            assert go.wait(30)
            yield
            order.append("step 2")
        finally:
            order.append("end")

    long = worker.submit(steps, Urgency.IDLE)
    assert begun.wait(30)
    assert long.future.cancel()
    assert worker.unfinished == 0
    go.set()
    assert worker.submit(lambda: "next", Urgency.IDLE).future.result(30) == "next"
    assert order == ["end"]


def endless(begun, ended):
    """Work that goes on until it is abandoned; it tells when it begins and ends."""
    try:
        begun.set()
        while True:
            yield
    finally:
        ended.append(1)


def test_what_nobody_waits_for_any_more_is_abandoned(worker):
    ended, begun = [], threading.Event()

    async def asking():
        answers = AnswerCache(worker, kept_bytes=100)
        first, second = (
            asyncio.ensure_future(answers.get("a", partial(endless, begun, ended), Urgency.IDLE)) for _ in range(2)
        )
        await asyncio.to_thread(begun.wait, 30)
        first.cancel()
        await asyncio.sleep(0)
        assert list(answers.coming) == ["a"]  # the other one still waits
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert answers.coming == {}
        assert await answers.get("b", lambda: b"b") == b"b"
        assert await answers.get("a", lambda: b"again") == b"again"

    asyncio.run(asking())
    worker.submit(lambda: None, Urgency.IDLE).future.result(30)
    assert ended == [1]


def test_closing_ends_work_that_is_not_done():
    worker, ended, begun = Worker(waiting=3), [], threading.Event()

    long = worker.submit(partial(endless, begun, ended), Urgency.IDLE)
    assert begun.wait(30)
    worker.close()
    assert ended == [1]
    assert long.future.cancelled()


def test_long_work_lets_others_pass(worker):
    order, begun, go = [], threading.Event(), threading.Event()

    def steps():
        order.append("step 1")
        begun.set()
        assert go.wait(30)
        yield
        order.append("step 2")
        yield
        return "done"

    long = worker.submit(steps, Urgency.LATER)
    assert begun.wait(30)
    quick = worker.submit(lambda: order.append("quick"))
    go.set()
    assert long.future.result(30) == "done"
    quick.future.result(30)
    assert order == ["step 1", "quick", "step 2"]


def test_refuses_when_enough_is_waiting(worker):
    held = Held()
    jobs = [worker.submit(held)]
    assert held.begun.wait(30)
    jobs += [worker.submit(lambda: 1) for _ in range(3)]
    with pytest.raises(Busy):
        worker.submit(lambda: 1)
    held.go.set()
    assert [job.future.result(30) for job in jobs] == ["held", 1, 1, 1]
    assert worker.submit(lambda: 2).future.result(30) == 2  # there is room again


def test_an_error_reaches_the_one_who_asked_and_nobody_else(worker):
    def fails():
        yield
        raise KeyError("x")

    with pytest.raises(KeyError):
        worker.submit(fails).future.result(30)
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda: 1 / 0).future.result(30)
    assert worker.submit(lambda: "alive").future.result(30) == "alive"


def test_equal_questions_are_computed_once_and_failures_again(worker):
    calls = []

    def work():
        calls.append(1)
        return b"answer"

    def fails():
        calls.append(0)
        raise LookupError("no")

    async def asking():
        answers = AnswerCache(worker, kept_bytes=100)
        assert await asyncio.gather(*(answers.get("a", work) for _ in range(50))) == [b"answer"] * 50
        assert await answers.get("a", work) == b"answer"
        for _ in range(2):
            with pytest.raises(LookupError):
                await answers.get("b", fails)

    asyncio.run(asking())
    assert calls == [1, 0, 0]


def test_kept_answers_are_bounded(worker):
    async def asking():
        answers = AnswerCache(worker, kept_bytes=25)
        for number in range(10):
            await answers.get(number, lambda: b"0123456789")
        return answers

    answers = asyncio.run(asking())
    assert list(answers.kept) == [8, 9]
    assert answers.size == 20
