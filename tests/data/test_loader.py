import multiprocessing
import os
import random
import signal
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitreous.data.loader import (
    GLANCE,
    WORKER_TIMEOUT,
    BatchSampler,
    Loader,
    mix,
    seed_everything,
    seeded,
    stack,
)
from vitreous.errors import InputError


class Noise:
    """Samples drawn from all three global generators: they differ unless the seeds agree."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int):
        noise = torch.tensor([random.random(), np.random.rand(), torch.rand(()).item(), float(index)])
        return noise.view(1, 2, 2), {"labels": index}


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


def batches(*, workers: int = 0, epoch: int = 3, start: int = 0, samples=None, **options):
    sampler = BatchSampler(23, 4, seed=1, shuffle=True, **options)
    loader = Loader(samples or Noise(), sampler, stack, workers=workers)
    loader.set_position(epoch, start)
    found = list(loader)
    loader.close()
    return found


def flat(found) -> torch.Tensor:
    return torch.cat([batch.images.flatten(1) for batch in found])


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


@pytest.mark.timeout(60)
def test_a_killed_worker_is_reported():
    with pytest.raises(InputError, match="--workers 0"):
        batches(workers=1, samples=Broken(die))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("action", [refuse, die, hang])
def test_no_worker_outlives_a_failure(action):
    loader = Loader(Broken(action), BatchSampler(23, 4), stack, workers=2, worker_timeout=1.5)
    with pytest.raises(InputError, match=r"--workers 0|five\.jpg"):
        list(loader)
    loader.close()
    assert not multiprocessing.active_children()
    assert WORKER_TIMEOUT + 2 * GLANCE < 30, "seconds after which a worker that hangs has been noticed"


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
