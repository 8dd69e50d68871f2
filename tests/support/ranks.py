"""Start the processes of a run as torchrun does, but from a server that has imported everything: in milliseconds."""

import multiprocessing
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import vitreous_command
from vitreous.runs.run_folder import read_metrics
from vitreous.runtime import distributed

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["vitreous.train", "vitreous_command", "torch.distributed.fsdp"])


def arguments(settings: dict[str, Any]) -> list[str]:
    """Settings as the words of `vitreous train`."""
    words = [str(settings["model"]), str(settings["data"])]
    for name, value in settings.items():
        option = name.replace("_", "-")
        if name in ("model", "data"):
            continue
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return words


def _command(log: Path, environment: dict[str, str], words: list[str], before: Callable[[], None] | None) -> None:
    os.environ |= environment
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # for the loader's workers, as in a process started by hand
    vitreous_command.STDERR_GRACE_SECONDS = distributed.STDERR_GRACE_SECONDS = (
        0.0  # nobody here ends all processes when the first one ends
    )
    if before is not None:
        before()
    sys.exit(vitreous_command.main(words))


def _free_port() -> int:
    """One below those that systems hand out to clients, which could take it before the first process does."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Ranks:
    """`count` processes of one `vitreous` command, each with its log; none outlives the object."""

    def __del__(self) -> None:
        self.kill()

    def __init__(self, count: int, words: list[str], logs: Path, before: Callable[[], None] | None = None) -> None:
        port = str(_free_port())
        logs.mkdir(parents=True, exist_ok=True)
        self.logs = [logs / f"rank-{rank}.log" for rank in range(count)]
        self.processes = []
        for rank, log in enumerate(self.logs):
            log.unlink(missing_ok=True)
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            together = {"WORLD_SIZE": str(count)} if count > 1 else {}
            process = processes.Process(target=_command, args=(log, place | together, words, before))
            process.start()
            self.processes.append(process)

    def send(self, rank: int, number: int) -> None:
        os.kill(self.processes[rank].pid, number)

    def wait(self, seconds: float = 120) -> list[int | None]:
        """Exit codes; what still runs afterwards is killed and has the code None."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        codes = [process.exitcode for process in self.processes]
        self.kill()
        return codes

    def kill(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
                process.join()

    def wait_for_step(self, out: Path, step: int) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and all(process.is_alive() for process in self.processes):
            lines = read_metrics(out)
            if lines and lines[-1]["step"] >= step:
                return
            time.sleep(0.002)

    def said(self, rank: int) -> str:
        return self.logs[rank].read_text()

    def said_by_all(self) -> str:
        return "".join(self.said(rank) for rank in range(len(self.logs)))


def start_training(count: int, out: Path, settings: dict[str, Any], before: Callable[[], None] | None = None) -> Ranks:
    return Ranks(count, ["train", *arguments(settings | {"out": out})], out.with_name(f"{out.name}-logs"), before)


def finish_training(count: int, out: Path, settings: dict[str, Any]) -> Path:
    ranks = start_training(count, out, settings)
    assert ranks.wait() == [0] * count, ranks.said_by_all()
    return out
