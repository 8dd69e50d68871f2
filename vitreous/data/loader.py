"""Batches whose content depends on (seed, epoch, position) alone: not on workers, ranks, batch split or restarts.

The main process decides which sample comes when (`BatchSampler`); a sample's randomness is seeded from (seed,
epoch, index) where it is made, so it does not matter which worker makes it.

A worker process may freeze at any moment: stopped from outside, or stuck in C code that holds the interpreter's lock.
A thread that then takes an announced batch blocks for ever, because torch asks the worker itself, without a timeout,
for the memory that holds it. So the main thread never does: another thread takes batches, while the main one waits for
it, watches the workers' progress, handles signals and kills workers that are stuck. Memory shared by name (torch's
`file_system`) would need no answer from the worker, but another process to clean up, and a worker stopped in the
middle of a message would still block.

An unreadable picture never ends an epoch and never goes unnoticed: training replaces it by the next one, which is again
a function of the data alone, evaluation skips it, and the batch reports it.
"""

import ctypes
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from multiprocessing import active_children, util
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from vitreous.data.image import ImageError
from vitreous.errors import InputError, limit_reached

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

# Seconds without a new image from the worker whose batch is due, after which it counts as hung. Images, not batches:
# storage so slow that a batch takes a minute still makes progress.
WORKER_TIMEOUT = 20.0
START_TIMEOUT = 120.0  # until the first worker has started: unless forked, each imports torch anew
WORKER_POLL_SECONDS = 1.0
SHUTDOWN_SECONDS = 3.0  # workers that have not ended by then are killed
STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")  # the last is what schedulers send before pre-emption
PR_SET_PDEATHSIG = 1  # of Linux's prctl
USUAL_FILES = 4096  # open files of a process, if the machine allows it
OWN_FILES, FILES_OF_WORKER = 48, 16  # for two loaders, each with one or two batches in transit from every worker
LONGEST_GAP = 100  # unreadable pictures in a row after which training gives up
FILES_SHUFFLED_TOGETHER = 32  # where samples that share a file are best read one soon after the other
_BITS_64 = (1 << 64) - 1


class Draw(NamedTuple):
    """Which sample, in which epoch: the key of the sample's randomness."""

    epoch: int
    sample: int  # its index in the data set
    repeat: int = 0  # counts the draws of the sample within the epoch


class Unreadable(NamedTuple):
    """A picture that could not be used."""

    sample: int
    reason: str


class Sample(NamedTuple):
    """A sample before it is collated into a batch."""

    number: int  # of the sample in the data set
    sample: Any  # None if it cannot be read and nothing takes its place
    unreadable: tuple[Unreadable, ...]


class Batch(NamedTuple):
    images: Any  # (B, 3, H, W), or a list of such where pictures are seen at several sizes
    targets: dict[str, Any]  # tensors, or lists with an entry for each image
    indices: tuple[int, ...]  # of the samples in the data set, for messages; none if all were unreadable
    unreadable: tuple[Unreadable, ...] = ()


class LoadingError(InputError):
    """No more batches come. A `Loader` raises it while the caller waits, so that no step is left half done."""


class Failure(NamedTuple):
    """An InputError that a worker process returns; torch would bury its message in a traceback."""

    message: str


def mix(*numbers: int) -> int:
    """One well-spread 64-bit number from several (SplitMix64); the same in every process and Python version."""
    state = 0
    for number in numbers:
        state = (state ^ (number & _BITS_64)) + 0x9E3779B97F4A7C15 & _BITS_64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _BITS_64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _BITS_64
        state ^= state >> 31
    return state


def seed_everything(*key: int) -> None:
    """Set Python's, NumPy's and torch's (all devices') generators from a key."""
    _seed_cpu(*key)
    torch.manual_seed(mix(*key))


def _seed_cpu(*key: int) -> None:
    value = mix(*key)
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    torch.default_generator.manual_seed(value)


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """As `seed_everything` on the CPU, but the generators continue afterwards as if nothing had happened.

    In a loader's worker process they do not: nothing else uses them there, and saving their state takes a tenth of the
    time of decoding a picture.
    """
    shared = get_worker_info() is None
    if shared:
        python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    _seed_cpu(*key)
    try:
        yield
    finally:
        if shared:
            random.setstate(python)
            np.random.set_state(numpy)
            torch.set_rng_state(torch_state)


class BatchSampler(Sampler[list[Draw]]):
    """Lists of draws for the batches of one epoch, from any position on.

    A global batch of `batch_size` draws is cut into contiguous `pieces` (gradient accumulation), and each piece is
    shared among `world` ranks: the global batch and its pieces are the same however many ranks there are. A share
    is made of pairs, as far from the start of the piece as from its end, so that reversing a share is reversing the
    piece: what blends every image with its mirror in the piece (mixup) needs no images of other ranks.

    With `whole_batches` the ranks take turns instead, a batch each. All get equally many, for they must keep step;
    where the last round is short of batches the first one fills in, and only `counted` batches count.

    With `repeats` (Hoffer et al. 2020; Berman et al. 2019) each sample is drawn so many times in a row, of as many
    fewer samples: an epoch is as long as without.

    `file_lengths` says how many samples, in the order of the indices, share a file. With many such files, these are
    shuffled, and samples within `FILES_SHUFFLED_TOGETHER` of them, so that a slow disk need not seek everywhere.

    With `groups`, the number of each sample's group, an epoch is as long as without, but draws every group equally
    often: samples of small groups several times, each time in another view, and not all of large ones. Samples that
    share a file are then not kept together.
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
        repeats: int = 1,
        file_lengths: Sequence[int] = (),
        groups: Sequence[int] = (),
        rank: int = 0,
        world: int = 1,
        whole_batches: bool = False,
    ) -> None:
        self.length, self.seed, self.shuffle, self.repeats = length, seed, shuffle, repeats
        self.file_lengths, self.groups = file_lengths, groups
        self.batch_size = min(batch_size, length) if drop_last else batch_size  # never zero batches
        self.pieces = min(pieces, self.batch_size)  # never an empty piece of a whole batch
        self.rank, self.world, self.whole_batches = rank, world, whole_batches
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
        if self.groups:
            return self._balanced(generator)
        if len(self.file_lengths) <= FILES_SHUFFLED_TOGETHER:
            return torch.randperm(self.length, generator=generator).tolist()
        files = torch.arange(self.length).split(list(self.file_lengths))
        order: list[int] = []
        for window in torch.randperm(len(files), generator=generator).split(FILES_SHUFFLED_TOGETHER):
            samples = torch.cat([files[file] for file in window])
            order += samples[torch.randperm(len(samples), generator=generator)].tolist()
        return order

    def _balanced(self, generator: torch.Generator) -> Sequence[int]:
        """As many draws as there are samples, of every group the same number, or one more.

        A sample of a group is drawn again only when all others of it have been drawn as often.
        """
        groups = torch.tensor(self.groups)
        members = groups.argsort(stable=True).split(torch.bincount(groups).tolist())
        drawn = []
        for place, number in enumerate(torch.randperm(len(members), generator=generator).tolist()):
            own, wanted = members[number], len(range(place, self.length, len(members)))
            rounds = [torch.randperm(len(own), generator=generator) for _ in range(-(-wanted // len(own)))]
            drawn.append(own[torch.cat(rounds)[:wanted]])
        return torch.cat(drawn)[torch.randperm(self.length, generator=generator)].tolist()

    @property
    def counted(self) -> int:
        """How many of this rank's batches are its own."""
        return len(range(self.rank, self.batches, self.world)) if self.whole_batches else self.batches

    def __len__(self) -> int:
        return len(self._numbers()) * self.pieces

    def _numbers(self) -> Sequence[int]:
        """Of the batches this rank takes part in."""
        if not self.whole_batches:
            return range(self.start, self.batches)
        rounds = -(-self.batches // self.world)
        turns = range(self.rank, rounds * self.world, self.world)
        return [number if number < self.batches else 0 for number in turns]

    def __iter__(self) -> Iterator[list[Draw]]:
        epoch, order, repeats = self.epoch, self.order(self.epoch), self.repeats
        earlier = _draws_before(order) if self.groups else [0] * len(order)
        for batch in self._numbers():
            places = range(self.length)[batch * self.batch_size : (batch + 1) * self.batch_size]
            for number in range(self.pieces):
                piece = _part(places, number, self.pieces)
                share = piece if self.whole_batches else _share(piece, self.rank, self.world)
                if share:  # a last batch that is not dropped may be too short to be divided
                    drawn = [divmod(place, repeats) for place in share]
                    yield [Draw(epoch, order[turn], view + repeats * earlier[turn]) for turn, view in drawn]


class SeededSamples(Dataset):
    """A data set addressed by draws: the sample's randomness is set before the sample is made.

    With `replace` the next sample that can be read takes the place of one that cannot; where samples are sorted by
    class, it is of the same class nearly always.
    """

    def __init__(self, samples: Any, seed: int, *, replace: bool, workers: int) -> None:
        self.samples, self.seed, self.replace = samples, seed, replace
        self.progress = torch.zeros(workers, dtype=torch.int64).share_memory_()  # of each worker, for the main process

    def __getitem__(self, draw: Draw) -> Sample | Failure:
        made = self._make(draw)
        self.show_progress()
        return made

    def show_progress(self) -> None:
        worker = get_worker_info()
        if worker is not None:
            self.progress[worker.id] += 1

    def _make(self, draw: Draw) -> Sample | Failure:
        unreadable: list[Unreadable] = []
        tries = min(LONGEST_GAP, len(self.samples)) if self.replace else 1
        for step in range(tries):
            index = (draw.sample + step) % len(self.samples)
            try:
                with seeded(self.seed, *draw):
                    return Sample(index, self.samples[index], tuple(unreadable))
            except ImageError as error:
                unreadable.append(Unreadable(index, str(error)))
            except InputError as error:
                return Failure(str(error))
        if self.replace:
            return Failure(f"{tries} images in a row cannot be read; the first: {unreadable[0].reason}")
        return Sample(draw.sample, None, tuple(unreadable))


class Loader:
    """Batches of a data set; `for batch in loader` gives one epoch, or its rest after `set_position`."""

    def __init__(
        self,
        samples: Any,
        sampler: BatchSampler,
        collate: Callable[[list[Any]], Any],
        *,
        workers: int,
        worker_timeout: float = WORKER_TIMEOUT,
        replace: bool = False,
        finish: Callable[[Tensor], Tensor] = lambda images: images,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """`replace` as in `SeededSamples`; `finish` is done to a whole batch of images where the model is.

        `while_waiting` is called every second in which no batch comes from the workers, and may raise.
        """
        self.sampler, self.finish, self.worker_timeout = sampler, finish, worker_timeout
        self.while_waiting = while_waiting
        if workers:
            _require_files(workers)
        self._samples = SeededSamples(samples, sampler.seed, replace=replace, workers=workers)
        self._torch_loader: DataLoader = DataLoader(
            self._samples,
            batch_sampler=sampler,
            collate_fn=partial(_collated, collate),
            num_workers=workers,
            persistent_workers=workers > 0,
            worker_init_fn=_start_worker,
            pin_memory=torch.cuda.is_available(),
            # Its own generator: torch would otherwise draw a worker seed from the global one.
            generator=torch.Generator(),
        )

    def set_position(self, epoch: int, start: int = 0) -> None:
        self.sampler.set_position(epoch, start)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        with worker_failures_explained():  # in case a death is reported between two lines below
            batches = self._from_workers() if self._torch_loader.num_workers else iter(self._torch_loader)
            for batch in batches:
                if isinstance(batch, Failure):
                    raise LoadingError(batch.message)
                yield batch

    def _from_workers(self) -> Iterator[Batch | Failure]:
        loader = self._torch_loader
        if loader._iterator is None:
            with worker_failures_explained(), _limits_explained():
                batches = _with_workers(loader)  # here: workers end together with the thread that has started them
        else:
            batches = chain.from_iterable([loader])  # begins with the first batch, in the thread that takes it
        try:
            while True:
                with worker_failures_explained(), _limits_explained():
                    batch = self._next(batches)
                if batch is None:
                    return
                yield batch
        except GeneratorExit:
            raise
        except BaseException:
            self.close(force=True)
            raise

    def _next(self, batches: Iterator[Any]) -> Batch | Failure | None:
        """Wait for a batch, None after the last, as long as the worker that makes it makes progress."""
        answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        # A daemon: if it blocks on a frozen worker, the process can still end.
        threading.Thread(target=_take, args=(batches, answers), daemon=True).start()
        seen, silent, looked = self._progress(), 0.0, time.monotonic()
        while True:
            with suppress(Empty):
                batch, error = answers.get(timeout=WORKER_POLL_SECONDS)
                if error is not None:
                    raise error
                return batch
            self.while_waiting()
            now = time.monotonic()
            # Not the time for which the whole process group was stopped (Ctrl-Z).
            silent += min(now - looked, 2 * WORKER_POLL_SECONDS)
            looked, before, seen = now, seen, self._progress()
            if seen != before:
                silent = 0.0
            limit = self.worker_timeout if seen[1] else max(self.worker_timeout, START_TIMEOUT)
            if silent > limit:
                who = "the worker processes" if seen[0] is None else f"worker process {seen[0]}"
                raise LoadingError(
                    f"loading data failed: {who} got no image done within {limit:g} s; if the storage is that slow, "
                    "raise --worker-timeout; otherwise use --workers 0 to see what hangs"
                )

    def _progress(self) -> tuple[int | None, int]:
        """Process id and finished images of the worker whose batch is due; between epochs, the images of all."""
        iterator: Any = self._torch_loader._iterator
        owes = getattr(iterator, "_task_info", {}).get(getattr(iterator, "_rcvd_idx", None))
        if owes is None:  # between two epochs
            return None, int(self._samples.progress.sum())
        return iterator._workers[owes[0]].pid, int(self._samples.progress[owes[0]])

    def on(
        self, batch: Batch, device: torch.device, layout: torch.memory_format = torch.contiguous_format
    ) -> tuple[Any, dict[str, Any]]:
        """Images and targets of a batch on a device, ready for the model."""
        sizes = batch.images if isinstance(batch.images, list) else [batch.images]
        images = [self.finish(one.to(device, memory_format=layout, non_blocking=True)) for one in sizes]
        targets = {key: moved_to(value, device) for key, value in batch.targets.items()}
        return images if isinstance(batch.images, list) else images[0], targets

    def close(self, *, force: bool = False) -> None:
        """End the worker processes, also those that no longer answer; with `force` without asking them first.

        torch's own shutdown waits for locks that a frozen worker may hold, and its last resort, SIGTERM, does not
        reach one; so it gets a thread and a few seconds, and workers that are then still alive are killed.
        """
        iterator: Any = self._torch_loader._iterator
        self._torch_loader._iterator = None
        if iterator is None:
            return

        def part() -> None:
            with suppress(Exception):
                iterator._shutdown_workers()

        parting = threading.Thread(target=part, daemon=True)
        if not force:
            parting.start()
            parting.join(SHUTDOWN_SECONDS)
        for worker in iterator._workers:
            while worker.is_alive():
                with suppress(RuntimeError):  # torch's report of the worker that was just killed
                    worker.kill()
                    worker.join(WORKER_POLL_SECONDS)
        if force:
            parting.start()
            parting.join(SHUTDOWN_SECONDS)


def _require_files(workers: int) -> None:
    """Workers and batches in transit take open files; a limit that is too low is raised where that is allowed."""
    if resource is None:
        return
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return
    if allowed < USUAL_FILES:
        allowed = USUAL_FILES if most == resource.RLIM_INFINITY else min(most, USUAL_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    needed = OWN_FILES + FILES_OF_WORKER * workers
    if allowed < needed:
        raise InputError(
            f"this process may open {allowed} files, and with {workers} workers needs about {needed}; "
            "raise the limit (ulimit -n 4096), or use fewer --workers"
        )


def _with_workers(loader: DataLoader) -> Iterator[Any]:
    """Start the workers; if that fails halfway, end those that have started."""
    util.get_temp_dir()  # for the workers' sockets: this process clears it away, one that is killed cannot
    before = set(active_children())
    try:
        return iter(loader)
    except BaseException as reason:
        for frame, _ in traceback.walk_tb(reason.__traceback__):
            if isinstance(frame.f_locals.get("self"), _MultiProcessingDataLoaderIter):
                frame.f_locals["self"]._shutdown = True  # torch would try to end workers that are missing, and complain
        for worker in set(active_children()) - before:
            worker.kill()
            worker.join()
        raise


def _take(batches: Iterator[Any], answers: "SimpleQueue[tuple[Any, BaseException | None]]") -> None:
    """The next batch, None after the last, or what was raised in its place."""
    try:
        answers.put((next(batches, None), None))
    except BaseException as error:
        answers.put((None, error))


@contextmanager
def _limits_explained() -> Iterator[None]:
    """Turn a failure of a worker, or of taking its batch, into a message if a limit of the machine caused it."""
    try:
        yield
    except (RuntimeError, OSError, MemoryError) as reason:
        limit = limit_reached(reason)
        if limit is None:
            raise
        raise LoadingError(f"loading data failed: {limit}") from reason


def moved_to(value: Any, device: torch.device) -> Any:
    """Tensors and lists of them on a device; what is neither stays where it is."""
    if isinstance(value, list):
        return [moved_to(item, device) for item in value]
    # Apple's GPUs have no doubles. What comes in doubles is for metrics, which are computed on the CPU.
    stays = not isinstance(value, Tensor) or (value.dtype == torch.float64 and device.type == "mps")
    return value if stays else value.to(device, non_blocking=True)


@contextmanager
def worker_failures_explained() -> Iterator[None]:
    """Turn torch's report of a dead worker into a message; it can come at any moment, not only while loading."""
    try:
        yield
    except (RuntimeError, ConnectionError, EOFError) as reason:
        if isinstance(reason, RuntimeError) and "DataLoader worker" not in str(reason):
            raise
        first_line = (str(reason).strip() or type(reason).__name__).splitlines()[0]
        raise LoadingError(
            f"loading data failed: {first_line}; a worker process died (often for lack of memory); "
            "try fewer --workers, or --workers 0 to see the cause"
        ) from reason


def stack(samples: list[tuple[Tensor, dict[str, Tensor]]]) -> tuple[Tensor, dict[str, Tensor]]:
    """Images of equal size and targets of equal shape, each stacked along a new first axis."""
    images = torch.stack([image for image, _ in samples])
    keys = samples[0][1]
    return images, {key: torch.stack([torch.as_tensor(target[key]) for _, target in samples]) for key in keys}


def _collated(collate: Callable[[list[Any]], Any], drawn: list[Sample | Failure]) -> Batch | Failure:
    for failure in drawn:
        if isinstance(failure, Failure):
            return failure
    made = [sample for sample in drawn if isinstance(sample, Sample)]
    unreadable = tuple(one for sample in made for one in sample.unreadable)
    usable = [sample for sample in made if sample.sample is not None]
    if not usable:
        return Batch(torch.empty(0), {}, (), unreadable)
    images, targets = collate([sample.sample for sample in usable])
    return Batch(images, targets, tuple(sample.number for sample in usable), unreadable)


def _draws_before(order: Sequence[int]) -> list[int]:
    """How often the sample at each place has been drawn before."""
    seen: Counter[int] = Counter()
    before = []
    for sample in order:
        before.append(seen[sample])
        seen[sample] += 1
    return before


def _part(items: Sequence[int], number: int, count: int) -> Sequence[int]:
    """The contiguous part `number` of `count`, sizes differing by one at most."""
    return items[len(items) * number // count : len(items) * (number + 1) // count]


def _share(piece: Sequence[int], rank: int, world: int) -> Sequence[int]:
    """A rank's pairs of mirrored places, from the start of the piece and in the same order from its end."""
    length, pairs = len(piece), -(-len(piece) // 2)
    if pairs < world:  # not a pair for each: single places then
        return _part(piece, rank, world)
    start, stop = pairs * rank // world, pairs * (rank + 1) // world
    return [*piece[start:stop], *piece[max(stop, length - stop) : length - start]]


def _start_worker(_: int) -> None:
    """A signal to the process group is for the main process, which ends the workers when it has saved its work."""
    for name in STOP_SIGNALS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if sys.platform == "linux":  # elsewhere torch polls for its parent, unless a sample hangs
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # no worker outlives the main process
    worker: Any = get_worker_info()
    worker.dataset.show_progress()  # has started
