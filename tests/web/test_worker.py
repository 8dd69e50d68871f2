"""The model's thread: urgent work first, long work in steps, no more waiting than allowed, no answer computed twice."""

import asyncio
import threading

import pytest

from vitreous.web.worker import AnswerCache, Busy, Worker


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
    slow = worker.submit(lambda: order.append("later"), later=True)
    quick = worker.submit(lambda: order.append("now"))
    held.go.set()
    for future in (first, slow, quick):
        future.result(30)
    assert order == ["now", "later"]


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

    long = worker.submit(steps, later=True)
    assert begun.wait(30)
    quick = worker.submit(lambda: order.append("quick"))
    go.set()
    assert long.result(30) == "done"
    quick.result(30)
    assert order == ["step 1", "quick", "step 2"]


def test_refuses_when_enough_is_waiting(worker):
    held = Held()
    futures = [worker.submit(held)]
    assert held.begun.wait(30)
    futures += [worker.submit(lambda: 1) for _ in range(3)]
    with pytest.raises(Busy):
        worker.submit(lambda: 1)
    held.go.set()
    assert [future.result(30) for future in futures] == ["held", 1, 1, 1]
    assert worker.submit(lambda: 2).result(30) == 2  # there is room again


def test_an_error_reaches_the_one_who_asked_and_nobody_else(worker):
    def fails():
        yield
        raise KeyError("x")

    with pytest.raises(KeyError):
        worker.submit(fails).result(30)
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda: 1 / 0).result(30)
    assert worker.submit(lambda: "alive").result(30) == "alive"


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
