"""The processes that share one run: who they are, how they agree, and how all of them end when one cannot go on.

`torchrun` starts them and tells each its rank. Without it there is one process, and everything here is trivial.
There are two kinds of waiting. The exchanges of a step end the run after `--rank-timeout`, so that a process that hangs
does not hang the others. Work without a time limit (opening data, writing checkpoints) may go on for as long as the
heartbeat of its process is seen.
"""

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from vitreous.errors import InputError, printable
from vitreous.runtime.device import choose_device

_T = TypeVar("_T")

RENDEZVOUS_TIMEOUT = timedelta(minutes=10)  # the machines of a run may start minutes apart
RANK_TIMEOUT_SECONDS = 25.0  # with the 30 s that torchrun gives a process to end by itself, all end within a minute
SLOW_WORK_TIMEOUT = timedelta(minutes=30)
RENDEZVOUS_POLL_SECONDS = 0.05
BAD_INPUT = 2  # exit code of processes that leave the message to another one
STDERR_GRACE_SECONDS = 3.0  # torchrun ends all processes when one has ended; the first must have said why by then
LOST_CONTACT = 75  # exit code when another process is gone or silent; sysexits.h: a temporary failure
# In the messages of torch and gloo.
FAILED_EXCHANGES = ("gloo", "Connection", "NCCL", "pair closure", "Timed out waiting")
BEATS_PER_TIMEOUT = 10
EXPLAINED_KEY = "spoken"  # in the shared store: how many processes have explained the end

_logger = logging.getLogger(__name__)


class CollectiveInputError(InputError):
    """An InputError that all processes raise together; only the first one prints it."""


@dataclass(frozen=True)
class World:
    """All processes of a run, seen from one of them."""

    device: torch.device
    rank: int = 0
    size: int = 1
    slow_group: Any = None  # process group for work without a time limit
    store: Any = None  # key-value store that outlives a process

    @property
    def main(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def agree(self, action: Callable[[], _T]) -> _T:
        """Every process acts; an InputError of any of them is raised by all."""
        if self.size == 1:
            return action()
        result, refused = None, None
        try:
            result = action()
        except InputError as error:
            refused = str(error)
        refusals = self.gather(refused)
        for rank, message in enumerate(refusals):
            if message is not None:
                everyone = all(other == message for other in refusals)
                raise CollectiveInputError(message if everyone else f"process {rank} of {self.size}: {message}")
        return result  # type: ignore[return-value]

    def on_main(self, action: Callable[[], _T]) -> _T:
        """Only the first process acts; all get its result, or raise its InputError."""
        if self.size == 1:
            return action()
        outcome: list[Any] = [None, None]  # result, message
        if self.main:
            try:
                outcome[0] = action()
            except InputError as error:
                outcome[1] = str(error)
        dist.broadcast_object_list(outcome, src=0, group=self.slow_group)
        if outcome[1] is not None:
            raise CollectiveInputError(outcome[1])
        return outcome[0]

    def gather(self, own: _T) -> list[_T]:
        """The values of all processes, in the order of their ranks."""
        if self.size == 1:
            return [own]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, own, group=self.slow_group)
        return found

    def exchange(self, *numbers: float) -> list[list[float]]:
        """Like `gather` for each of a few numbers; fast enough for every step, and subject to the time limit."""
        if self.size == 1:
            return [[number] for number in numbers]
        found = torch.empty(self.size, len(numbers), dtype=torch.float64)
        dist.all_gather_into_tensor(found.view(-1), torch.tensor(numbers, dtype=torch.float64))
        return found.T.tolist()

    def broadcast(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        """The first process's tensors, on the CPU, for all; the others give None."""
        if self.size == 1:
            assert tensors is not None
            return tensors
        outlines = self.on_main(lambda: {name: (t.shape, t.dtype) for name, t in (tensors or {}).items()})
        if tensors is None:
            tensors = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in outlines.items()}
        for name in outlines:
            dist.broadcast(tensors[name], src=0, group=self.slow_group)
        return tensors


def sum_over_processes(tensor: Tensor) -> None:
    """In place; on one process nothing happens. Subject to the time limit of a step."""
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(tensor)


SINGLE_PROCESS = World(torch.device("cpu"))


class Heartbeat:
    """Threads in each process that show the others it is alive, and end the process when another one is not.

    An exchange that waits for a frozen or vanished process cannot be interrupted from within, and slow work has no time
    limit. Beats are counted, not timed: a process that was itself frozen counts none, and blames nobody. From `start`
    to `stop` the first process listens to all others, and all others to the first.
    """

    def __init__(self, store: Any, rank: int, size: int, *, timeout: float, exit_code: int) -> None:
        self.store, self.rank, self.timeout, self.exit_code = store, rank, timeout, exit_code
        self.others = {r: f"process {r} of {size}" for r in (range(1, size) if rank == 0 else (0,))}
        self._heard = dict.fromkeys(["what the processes share", *self.others.values()], 0)  # name -> beats
        self._stop = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def start(self) -> None:
        # Two threads: the one that asks a vanished store never returns, so the other one counts.
        threading.Thread(target=self._beat, daemon=True).start()
        self._listener.start()

    def stop(self) -> None:
        self._stop.set()
        self._listener.join()

    def _beat(self) -> None:
        while not self._stop.wait(self.timeout / BEATS_PER_TIMEOUT):
            try:
                self.store.add(f"beat/{self.rank}", 1)
                heard = {name: self.store.add(f"beat/{rank}", 0) for rank, name in self.others.items()}
            except RuntimeError:
                return  # the listener will notice
            self._heard = {name: heard.get(name, beats + 1) for name, beats in self._heard.items()}

    def _listen(self) -> None:
        before, silent = self._heard, dict.fromkeys(self._heard, 0)
        while not self._stop.wait(self.timeout / BEATS_PER_TIMEOUT):
            heard = self._heard
            silent = {name: silent[name] + 1 if heard[name] == before[name] else 0 for name in heard}
            before = heard
            lost = [name for name, beats in silent.items() if beats > BEATS_PER_TIMEOUT]
            if lost:
                message = (
                    f"vitreous: {lost[0]} has shown no sign of life for {self.timeout:g} s (--rank-timeout). "
                    "Checkpoints are intact: the same command continues\n"
                )
                os.write(2, message.encode())  # sys.stderr may be redirected
                os._exit(self.exit_code)


@contextmanager
def processes(device: str, *, timeout: float = RANK_TIMEOUT_SECONDS) -> Iterator[World]:
    """Join the other processes of this run, if torchrun started any; all but the first are silent in the block.

    However the block ends, all processes end, and one of them says why.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World(choose_device(device))
        return
    world = _join(device, timeout)
    heart = Heartbeat(world.store, world.rank, world.size, timeout=timeout, exit_code=LOST_CONTACT)
    heart.start()
    try:
        with ExitStack() as quiet:
            if not world.main:
                nowhere = quiet.enter_context(open(os.devnull, "w"))
                quiet.enter_context(redirect_stdout(nowhere))
                quiet.enter_context(redirect_stderr(nowhere))
            yield world
    except SystemExit:  # all agreed on it, after a signal
        _leave_together(heart, world)
        raise
    except Exception as error:
        # Destroying the group would wait for processes that may be gone.
        heart.stop()
        _exit_together(world, error, timeout)
    else:
        _leave_together(heart, world)


def _join(device: str, timeout: float) -> World:
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise InputError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']} but {', '.join(missing)} is not set; start several processes "
            "with torchrun (torchrun --nproc-per-node 2 -m vitreous train …), or unset WORLD_SIZE for one"
        )
    place = choose_device(device, local_rank=int(os.environ["LOCAL_RANK"]))
    limit = timedelta(seconds=timeout)
    if place.type == "cuda":
        torch.cuda.set_device(place)
        # A collective that hangs on a GPU cannot raise: torch's watchdog ends the process instead.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
        os.environ.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", str(round(timeout)))
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        everyones, _, _ = next(dist.rendezvous("env://", timeout=RENDEZVOUS_TIMEOUT))
        meeting = _rendezvous(everyones, rank, size)
        own = dist.PrefixStore(meeting, everyones)
        dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=limit)
        slow_group = dist.new_group(backend="gloo", timeout=SLOW_WORK_TIMEOUT)
        # Our own connection to the store: torch blocks its connection while it waits.
        store = dist.PrefixStore(meeting, dist.TCPStore(address, port, is_master=False, timeout=limit))
    except RuntimeError as error:
        if not _lost_contact(error):
            raise
        _logger.error(
            f"vitreous: process {rank} of {size} did not meet the others at {address}:{port} within "
            f"{RENDEZVOUS_TIMEOUT.total_seconds():g} s, or lost them again: is the address right, reachable and free, "
            f"and were all {size} started? ({str(error).splitlines()[0]})"
        )
        raise SystemExit(LOST_CONTACT) from error
    return World(place, rank, size, slow_group, store)


def _rendezvous(store: Any, rank: int, size: int) -> str:
    """A name for this start of the run, once all processes are present; only then can one be lost.

    torchrun keeps one store over all restarts, and machines may count restarts differently. So every process publishes
    a random id; the first one proposes a meeting of the ids it sees, and another when they change. Ids that dead
    processes left behind are never agreed to.
    """
    own, seen, meeting, agreed = uuid.uuid4().hex, None, "", ""
    deadline = time.monotonic() + RENDEZVOUS_TIMEOUT.total_seconds()
    keys = [f"vitreous/present/{number}" for number in range(size)]
    store.set(keys[rank], own)
    while time.monotonic() < deadline:
        if rank == 0:
            present = [store.get(key).decode() if store.check([key]) else "" for key in keys]
            if present != seen:
                seen, meeting = present, f"vitreous/{uuid.uuid4().hex}"
                store.set("vitreous/meeting", " ".join([meeting, *filter(None, present)]))
        elif store.check(["vitreous/meeting"]):
            meeting, *numbers = store.get("vitreous/meeting").decode().split()
            meeting = meeting if own in numbers else ""
        if meeting and agreed != meeting:
            store.add(f"{meeting}/agreed", 1)
            agreed = meeting
        if meeting and store.add(f"{meeting}/agreed", 0) == size:
            return meeting
        time.sleep(RENDEZVOUS_POLL_SECONDS)
    raise dist.DistError("some processes did not join")


def _leave_together(heart: Heartbeat, world: World) -> None:
    """Leave at the same time: the first process may hold the store, and must not look lost to the others."""
    if not world.main:
        heart.stop()
    dist.barrier(group=world.slow_group)
    heart.stop()
    dist.destroy_process_group()


def _exit_together(world: World, error: Exception, timeout: float) -> None:
    """Raise what this process ends with, so that all of them end and one says why."""
    if isinstance(error, CollectiveInputError):
        if world.main:
            raise error
        time.sleep(STDERR_GRACE_SECONDS)
        raise SystemExit(BAD_INPUT) from error
    first = _is_first_to_explain(world)
    if _lost_contact(error):
        if first:
            _logger.error(
                f"vitreous: process {world.rank} of {world.size} lost contact with another one: it was ended, its "
                f"machine is gone, or it did not answer for {timeout:g} s (--rank-timeout). Checkpoints are intact: "
                f"the same command continues ({str(error).splitlines()[0]})"
            )
        raise SystemExit(LOST_CONTACT) from error
    if not isinstance(error, InputError) or world.main:
        raise error
    _logger.error(printable(f"vitreous: process {world.rank} of {world.size}: {error}", keep="\n"))
    raise SystemExit(BAD_INPUT) from error


def _is_first_to_explain(world: World) -> bool:
    """Whether no other process has explained the end yet. Each process that fails asks once."""
    with suppress(RuntimeError):  # the store is gone with the process that held it
        return world.store.add(EXPLAINED_KEY, 1) == 1
    return True


def _lost_contact(error: Exception) -> bool:
    """Whether an exchange between processes failed. Gloo has no exception type of its own."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in FAILED_EXCHANGES)
