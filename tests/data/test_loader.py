import ctypes
import multiprocessing
import os
import random
import resource
import signal
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.random_samples import Noise, batches, flat
from vitreous.data.loader import (
    USUAL_FILES,
    WORKER_POLL_SECONDS,
    WORKER_TIMEOUT,
    BatchSampler,
    Loader,
    mix,
    seed_everything,
    seeded,
    stack,
)
from vitreous.errors import InputError


class Broken(Noise):
    def __init__(self, action) -> None:
        self.action = action

    def __getitem__(self, index: int):
        if index == 5:
            self.action()
        return super().__getitem__(index)


def refuse() -> None:
    raise InputError("file five.jpg is not an image")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    time.sleep(600)


def test_samples_do_not_depend_on_workers():
    expected = batches(workers=0)
    for workers in (1, 2):
        found = batches(workers=workers)
        assert [batch.indices for batch in found] == [batch.indices for batch in expected]
        assert torch.equal(flat(found), flat(expected))
        assert torch.equal(found[0].targets["labels"], expected[0].targets["labels"])


@pytest.mark.parametrize("pieces", [2, 3])
def test_samples_do_not_depend_on_how_a_batch_is_cut(pieces):
    assert torch.equal(flat(batches(pieces=pieces)), flat(batches()))


def test_ranks_share_the_same_global_batches():
    whole = batches()
    ranks = [batches(rank=rank, world=2) for rank in range(2)]
    for batch, *shares in zip(whole, *ranks, strict=True):
        made = {index: image for share in shares for index, image in zip(share.indices, share.images, strict=True)}
        assert sorted(made) == sorted(batch.indices)
        assert torch.equal(torch.stack([made[index] for index in batch.indices]), batch.images)


@given(start=st.integers(0, 6), epoch=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_an_epoch_continues_where_it_was_left(start, epoch):
    rest = batches(epoch=epoch, start=start)
    assert [b.indices for b in rest] == [b.indices for b in batches(epoch=epoch)[start:]]


def test_every_sample_once_and_another_order_each_epoch():
    orders = [[index for batch in batches(epoch=epoch) for index in batch.indices] for epoch in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(23))
    assert orders[0] != orders[1]
    assert not torch.equal(flat(batches(epoch=0)).sort(0).values, flat(batches(epoch=1)).sort(0).values)


def test_dropping_the_last_batch_never_drops_all():
    assert BatchSampler(23, 4, drop_last=True).batches == 5
    assert BatchSampler(3, 64, drop_last=True).batches == 1
    assert len(BatchSampler(23, 4, pieces=2)) == 12
    assert [len(part) for part in BatchSampler(3, 64, drop_last=True, pieces=8)] == [1, 1, 1]


def test_a_second_epoch_reuses_the_workers():
    loader = Loader(Noise(), BatchSampler(23, 4, shuffle=True), stack, workers=1)
    for epoch in range(2):
        loader.set_position(epoch)
        assert [b.indices for b in loader] == [b.indices for b in Loader(Noise(), loader.sampler, stack, workers=0)]
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_input_in_a_worker_keeps_its_message(workers):
    with pytest.raises(InputError, match=r"^file five\.jpg is not an image$"):
        batches(workers=workers, samples=Broken(refuse))


@pytest.mark.system
@pytest.mark.timeout(60)
def test_a_killed_worker_is_reported():
    with pytest.raises(InputError, match="--workers 0"):
        batches(workers=1, samples=Broken(die))


@pytest.mark.system
@pytest.mark.timeout(60)
@pytest.mark.parametrize("action", [refuse, die, hang])
def test_no_worker_outlives_a_failure(action):
    loader = Loader(Broken(action), BatchSampler(23, 4), stack, workers=2, worker_timeout=1.5)
    with pytest.raises(InputError, match=r"--workers 0|five\.jpg"):
        list(loader)
    loader.close()
    assert not multiprocessing.active_children()
    assert WORKER_TIMEOUT + 2 * WORKER_POLL_SECONDS < 30, "seconds after which a worker that hangs has been noticed"


def test_loading_leaves_the_global_generators_alone():
    seed_everything(5)
    expected = (random.random(), np.random.rand(), torch.rand(()).item())
    seed_everything(5)
    with seeded(9):
        random.random(), np.random.rand(), torch.rand(())
    batches()
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected


def test_mix_is_stable_and_spreads():
    assert mix(0, 1, 2) == mix(0, 1, 2) != mix(0, 2, 1)
    assert mix(1) == 10451216379200822465, "changing this changes every recorded run"
    assert len({mix(seed, epoch, index) for seed in range(3) for epoch in range(20) for index in range(500)}) == 30_000


# ---- workers that freeze -----------------------------------------------------------------------------------------


def state_of(pid: int) -> str:
    """A letter: R runs, S sleeps, T is stopped; as Linux shows it."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stuck_in_c() -> None:
    ctypes.PyDLL(None).sleep(600)  # PyDLL, unlike CDLL, keeps the interpreter's lock


class Freezing(Noise):
    """Freezes a worker in its third batch: when it has announced the second one, which nobody has taken yet."""

    def __init__(self, freeze, frozen, workers: int) -> None:
        self.freeze, self.frozen, self.workers = freeze, frozen, workers

    def __getitem__(self, index: int):
        if index == 8 * self.workers:
            self.frozen.set()
            self.freeze()
        return super().__getitem__(index)


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the states of processes as files")


@pytest.mark.system
@pytest.mark.timeout(60)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("freeze", [stop_itself, stuck_in_c])
def test_a_frozen_worker_is_noticed_and_ended(freeze, workers):
    frozen = multiprocessing.Event()
    samples = Freezing(freeze, frozen, workers)
    loader = Loader(samples, BatchSampler(23, 4), stack, workers=workers, worker_timeout=1.5)
    found = iter(loader)
    next(found)
    pids = [worker.pid for worker in loader._torch_loader._iterator._workers]
    assert frozen.wait(30)
    time.sleep(0.3)  # from the sign to the deed
    with pytest.raises(InputError, match=rf"worker process ({'|'.join(map(str, pids))}) got no image done within 1\.5"):
        list(found)
    assert not multiprocessing.active_children()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


class Wordy(Noise):
    """With targets that are sent as they are, in messages too long for a pipe to hold."""

    def __getitem__(self, index: int):
        return super().__getitem__(index)[0], bytes(200_000)


def images_and_words(samples):
    return torch.stack([image for image, _ in samples]), {"words": [words for _, words in samples]}


@pytest.mark.system
@needs_proc
@pytest.mark.timeout(60)
def test_a_worker_stopped_in_the_middle_of_a_message():
    loader = Loader(Wordy(), BatchSampler(23, 4), images_and_words, workers=1, worker_timeout=1.5)
    found = iter(loader)
    next(found)
    (worker,) = loader._torch_loader._iterator._workers
    time.sleep(0.5)  # the next message is on its way
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(InputError, match="got no image done"):
        list(found)
    assert not multiprocessing.active_children()


@pytest.mark.system
@pytest.mark.timeout(60)
def test_a_worker_stopped_between_two_epochs():
    loader = Loader(Noise(), BatchSampler(23, 4), stack, workers=2, worker_timeout=1.5)
    list(loader)
    os.kill(loader._torch_loader._iterator._workers[1].pid, signal.SIGSTOP)
    with pytest.raises(InputError, match="got no image done"):
        list(loader)
    assert not multiprocessing.active_children()


@pytest.mark.system
@pytest.mark.timeout(60)
@pytest.mark.parametrize("taken", [1, 6], ids=["in an epoch", "after it"])
def test_a_stopped_worker_does_not_keep_a_loader_from_closing(taken):
    loader = Loader(Noise(), BatchSampler(23, 4), stack, workers=2)
    found = iter(loader)
    for _ in range(taken):
        next(found)
    for worker in loader._torch_loader._iterator._workers:
        os.kill(worker.pid, signal.SIGSTOP)
    loader.close()
    assert not multiprocessing.active_children()


class Asked(Exception):
    pass


@pytest.mark.timeout(60)
def test_whoever_waits_can_be_called_away():
    def called() -> None:
        raise Asked

    loader = Loader(Broken(hang), BatchSampler(23, 4), stack, workers=1, while_waiting=called)
    with pytest.raises(Asked):
        list(loader)
    assert not multiprocessing.active_children()


@pytest.mark.timeout(60)
def test_a_pause_of_all_is_no_silence(monkeypatch):
    """Ctrl-Z stops the workers and the main process, which then finds that much time has passed."""
    clock = [0.0]

    def leap() -> float:
        clock[0] += 1000.0
        return clock[0]

    monkeypatch.setattr("vitreous.data.loader.time.monotonic", leap)
    slow = Loader(Broken(lambda: time.sleep(3.5)), BatchSampler(23, 4), stack, workers=1, worker_timeout=20)
    assert len(list(slow)) == 6
    slow.close()


@pytest.mark.timeout(60)
def test_a_slow_worker_is_left_alone():
    slow = Loader(Slow(), BatchSampler(14, 7), stack, workers=2, worker_timeout=2)
    assert len(list(slow)) == 2
    slow.close()


class Slow(Noise):
    """A batch takes longer than a worker may be silent, an image does not."""

    def __getitem__(self, index: int):
        time.sleep(0.4)
        return super().__getitem__(index)


def test_an_epoch_that_is_left_can_be_followed_by_another():
    loader = Loader(Noise(), BatchSampler(23, 4, shuffle=True), stack, workers=2)
    for epoch in range(3):
        loader.set_position(epoch)
        expected = [batch.indices for batch in Loader(Noise(), loader.sampler, stack, workers=0)]
        assert next(iter(loader)).indices == expected[0]
    assert [batch.indices for batch in loader] == expected
    loader.close()


def test_a_low_limit_of_open_files_is_raised_where_it_may_be():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
        Loader(Noise(), BatchSampler(23, 4), stack, workers=1)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(USUAL_FILES, before[1]), before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
