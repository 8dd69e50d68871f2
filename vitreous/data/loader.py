"""Batches whose content depends on (seed, epoch, position) alone: not on workers, ranks, batch split or restarts.

The main process decides which sample comes when (`BatchSampler`); a sample's randomness is seeded from (seed,
epoch, index) where it is made, so it does not matter which worker makes it.
"""

import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from vitreous.errors import InputError

WORKER_TIMEOUT = 120  # seconds without a batch before a worker counts as hung
MASK = (1 << 64) - 1


class Draw(NamedTuple):
    """Which sample, in which epoch."""

    epoch: int
    sample: int  # its index in the data set


class Batch(NamedTuple):
    images: Tensor  # (B, 3, H, W)
    targets: dict[str, Tensor]
    indices: tuple[int, ...]  # of the samples in the data set, for messages


class Failure(NamedTuple):
    """An InputError on its way out of a worker process; torch would bury its message in a traceback."""

    message: str


def mix(*numbers: int) -> int:
    """One well-spread 64-bit number from several (SplitMix64); the same in every process and Python version."""
    state = 0
    for number in numbers:
        state = (state ^ (number & MASK)) + 0x9E3779B97F4A7C15 & MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK
        state ^= state >> 31
    return state


def seed_everything(*key: int) -> None:
    """Set Python's, NumPy's and torch's (all devices') generators from a key."""
    value = mix(*key)
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    torch.manual_seed(value)


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """As `seed_everything` on the CPU, but the generators continue afterwards as if nothing had happened."""
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    value = mix(*key)
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    torch.default_generator.manual_seed(value)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torch_state)


class BatchSampler(Sampler[list[Draw]]):
    """Lists of draws for the batches of one epoch, from any position on.

    A global batch of `batch_size` draws is shared among `world` ranks, and each share is cut into `pieces`
    (gradient accumulation), always as contiguous parts: the global batch is the same however it is divided.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = False,
        drop_last: bool = False,
        pieces: int = 1,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.length, self.seed, self.shuffle = length, seed, shuffle
        self.batch_size = min(batch_size, length) if drop_last else batch_size  # never zero batches
        self.pieces = max(1, min(pieces, self.batch_size // world))  # never an empty piece of a whole batch
        self.rank, self.world = rank, world
        self.batches = length // self.batch_size if drop_last else -(-length // batch_size)
        self.epoch = self.start = 0

    def set_position(self, epoch: int, start: int = 0) -> None:
        """The next iteration is over `epoch`, without its first `start` global batches."""
        self.epoch, self.start = epoch, start

    def order(self, epoch: int) -> Sequence[int]:
        if not self.shuffle:
            return range(self.length)
        # No sample has the index -1, so the order shares its key with no sample.
        generator = torch.Generator().manual_seed(mix(self.seed, epoch, -1))
        return torch.randperm(self.length, generator=generator).tolist()

    def __len__(self) -> int:
        return (self.batches - self.start) * self.pieces

    def __iter__(self) -> Iterator[list[Draw]]:
        epoch, order = self.epoch, self.order(self.epoch)
        for batch in range(self.start, self.batches):
            draws = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            share = _part(draws, self.rank, self.world)
            for piece in range(self.pieces):
                part = _part(share, piece, self.pieces)
                if part:  # the last batch of an evaluation may be too short to be shared
                    yield [Draw(epoch, sample) for sample in part]


class SeededSamples(Dataset):
    """A data set addressed by draws: the sample's randomness is set before the sample is made."""

    def __init__(self, samples: Any, seed: int) -> None:
        self.samples, self.seed = samples, seed

    def __getitem__(self, draw: Draw) -> tuple[int, Any] | Failure:
        try:
            with seeded(self.seed, draw.epoch, draw.sample):
                return draw.sample, self.samples[draw.sample]
        except InputError as error:
            return Failure(str(error))


class Loader:
    """Batches of a data set; `for batch in loader` gives one epoch, or its rest after `set_position`."""

    def __init__(
        self, samples: Any, sampler: BatchSampler, collate: Callable[[list[Any]], Any], *, workers: int
    ) -> None:
        self.sampler = sampler
        self._torch_loader: DataLoader = DataLoader(
            SeededSamples(samples, sampler.seed),
            batch_sampler=sampler,
            collate_fn=_Collate(collate),
            num_workers=workers,
            persistent_workers=workers > 0,
            worker_init_fn=_start_worker,
            timeout=WORKER_TIMEOUT if workers else 0,
            pin_memory=torch.cuda.is_available(),
            # Its own generator: torch would otherwise draw a worker seed from the global one.
            generator=torch.Generator(),
        )

    def set_position(self, epoch: int, start: int = 0) -> None:
        self.sampler.set_position(epoch, start)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        try:
            for batch in self._torch_loader:
                if isinstance(batch, Failure):
                    raise InputError(batch.message)
                yield batch
        except (RuntimeError, ConnectionError, EOFError) as reason:
            if isinstance(reason, RuntimeError) and "DataLoader" not in str(reason):
                raise
            self.close(force=True)
            first_line = (str(reason).strip() or type(reason).__name__).splitlines()[0]
            raise InputError(
                f"loading data failed: {first_line}; a worker process died or hung (often for lack of memory); "
                "try fewer --workers, or --workers 0 to see the cause"
            ) from reason

    def close(self, *, force: bool = False) -> None:
        """End the worker processes; `force` also ends those that no longer answer."""
        iterator, self._torch_loader._iterator = self._torch_loader._iterator, None
        if iterator is None:
            return
        if force:
            for worker in getattr(iterator, "_workers", []):
                with suppress(Exception):
                    worker.kill()
        with suppress(RuntimeError):  # torch's report of the workers that were just killed
            iterator._shutdown_workers()  # type: ignore[attr-defined]


def stack(samples: list[tuple[Tensor, dict[str, Tensor]]]) -> tuple[Tensor, dict[str, Tensor]]:
    """Images of equal size and targets of equal shape, each stacked along a new first axis."""
    images = torch.stack([image for image, _ in samples])
    keys = samples[0][1]
    return images, {key: torch.stack([torch.as_tensor(target[key]) for _, target in samples]) for key in keys}


class _Collate:
    """A class, not a closure, so that it can be sent to workers that are not forked."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, drawn: list[Any]) -> Batch | Failure:
        for sample in drawn:
            if isinstance(sample, Failure):
                return sample
        images, targets = self.collate([sample for _, sample in drawn])
        return Batch(images, targets, tuple(index for index, _ in drawn))


def _part(items: Sequence[int], number: int, count: int) -> Sequence[int]:
    """The contiguous part `number` of `count`, sizes differing by one at most."""
    return items[len(items) * number // count : len(items) * (number + 1) // count]


def _start_worker(_: int) -> None:
    """A signal to the process group is for the main process, which ends the workers when it has saved its work."""
    for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
