"""Runs under the real torchrun: processes that are killed come back by themselves, and signals reach them.

Each start imports torch in every process, so this takes minutes; `ranks.py` starts the same processes at once.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.ranks import arguments
from tests.support.tiny_runs import TINY_PACA_RUN, fingerprint
from vitreous.runs.run_folder import read_metrics

pytestmark = pytest.mark.system

SETTINGS = TINY_PACA_RUN | dict(ema=0.9, drop_path=0.2, accumulate=2, epochs=20, val_count=8)  # 100 steps


@contextmanager
def torchrun(out: Path, *, restarts: int) -> Iterator[subprocess.Popen]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    # Often: it ends the others as soon as it sees that one is gone.
    launcher += ["--max-restarts", str(restarts), "--monitor-interval", "0.02", "-m", "vitreous"]
    command = [*launcher, "train", *arguments(SETTINGS | {"out": out})]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(out.with_suffix(".log"), "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            yield process
        finally:
            process.terminate()  # it ends its processes, too
            process.wait()


def finish(out: Path) -> Path:
    with torchrun(out, restarts=0) as process:
        assert process.wait(600) == 0, out.with_suffix(".log").read_text()
    return out


def rank_processes(launcher: int) -> list[int]:
    """In the order of their ranks, which is that of their birth."""
    return sorted(map(int, Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()))


def last_step(out: Path) -> int:
    return max((line["step"] for line in read_metrics(out)), default=0)


def wait_until(condition, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 300  # on a busy machine, importing torch alone takes a minute
    while not condition():
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_kills_of_a_random_process_leave_the_same_bits(tmp_path):
    rng, out, log = random.Random(0), tmp_path / "run", tmp_path / "run.log"
    with torchrun(out, restarts=10) as process:
        for kills in range(10):
            # Not before it has cut the lines back to its checkpoint: what counts is that it went on from there.
            wait_until(lambda kills=kills: log.read_text().count("continuing") == kills, process)
            target = last_step(out) + rng.randint(2, 6)  # every second step is saved
            wait_until(lambda target=target: last_step(out) >= target, process)
            time.sleep(rng.random() / 10)
            os.kill(rng.choice(rank_processes(process.pid)), signal.SIGKILL)
        assert process.wait(600) == 0, log.read_text()
    resumed = [int(step) for step in re.findall(r"continuing .* at step (\d+) of", log.read_text())]
    assert len(resumed) == 10
    assert resumed == sorted(resumed)
    assert len(set(resumed)) > 5, "most kills came after a new checkpoint"
    assert fingerprint(out) == fingerprint(finish(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_signal_to_torchrun_stops_all_and_the_same_command_continues(tmp_path):
    out = tmp_path / "run"
    with torchrun(out, restarts=3) as process:
        wait_until(lambda: last_step(out) >= 3, process)
        sent = time.time()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1, "torchrun's own code"
    assert (out / "checkpoints" / "LATEST").stat().st_mtime - sent < 10, "seconds until the checkpoint was there"
    assert "SIGTERM: checkpoint written at step" in out.with_suffix(".log").read_text()
    assert fingerprint(finish(out)) == fingerprint(finish(tmp_path / "whole"))
