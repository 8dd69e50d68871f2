"""Pieces of work in several threads: results in order, a tool in one hand only, nothing left running."""

import threading

import pytest
import torch

from vitreous.runtime.threads import concurrent_pieces, map_concurrently


def test_results_come_in_the_order_of_the_pieces(two_threads):
    second_is_done = threading.Event()

    def work(tool, piece):
        if piece == 0:
            assert second_is_done.wait(30)
        if piece == 1:
            second_is_done.set()
        return tool, piece

    results = list(map_concurrently(work, "ab", ((piece,) for piece in range(9))))
    assert [piece for _tool, piece in results] == list(range(9))
    assert results[0][0] != results[1][0]


def test_a_tool_is_used_by_one_piece_at_a_time(two_threads):
    both = threading.Barrier(2)

    def work(tool, _piece):
        assert tool.acquire(blocking=False)
        both.wait(30)  # two pieces are always on the way, each with the other's tool out of reach
        tool.release()

    tools = [threading.Lock(), threading.Lock()]
    assert len(list(map_concurrently(work, tools, [(piece,) for piece in range(10)]))) == 10


def test_the_threads_of_torch_are_shared_out_and_left_as_they_were(two_threads):
    seen = []
    assert concurrent_pieces() == 2
    inside = list(map_concurrently(lambda _tool: torch.get_num_threads(), "ab", [()] * 4))
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))  # a new one takes the default
    thread.start()
    thread.join()
    assert inside == [1] * 4
    assert [torch.get_num_threads(), *seen] == [2, 2]


def test_an_error_reaches_the_one_who_asked_and_the_rest_is_dropped(two_threads):
    done = []

    def work(_tool, piece):
        done.append(piece)
        if piece == 1:
            raise ValueError("piece 1")

    with pytest.raises(ValueError, match="piece 1"):
        list(map_concurrently(work, "ab", ((piece,) for piece in range(100))))
    assert len(done) < 10
    assert list(map_concurrently(lambda tool, piece: piece, "ab", [(5,)])) == [5]


def test_one_who_stops_looking_leaves_nothing_running(two_threads):
    running = threading.Semaphore(0)

    def work(_tool, piece):
        running.release()
        return piece

    results = map_concurrently(work, "ab", ((piece,) for piece in range(100)))
    assert next(results) == 0
    results.close()
    begun = 0
    while running.acquire(blocking=False):
        begun += 1
    assert begun <= 5
    assert not running.acquire(timeout=0.1)
