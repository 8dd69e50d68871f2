"""Runs that are killed at named moments, in the middle of a write, or by a scheduler that kills all it can find."""

import os
import random
import signal
import time
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from tests.support.ranks import start_training
from tests.support.tiny_runs import TINY, fingerprint, finish
from vitreous.files import storage
from vitreous.files.storage import recover_folders
from vitreous.runs import checkpoint, model_folder
from vitreous.runs.checkpoint import load_checkpoint, save_checkpoint
from vitreous.train import Training
from vitreous.training.state import WeightAverage

pytestmark = pytest.mark.system

# What is called -> at which step (5 are an epoch), and which argument tells the moment. In the order of a run.
MOMENTS = {
    "between the pieces of a batch": (Training, "loss", lambda run, piece, index: _at(run, 3) and index == 1),
    "between optimiser and average": (WeightAverage, "update", lambda average, step: step == 3),
    "before a line is logged": (Training, "log_training", lambda run, *_: _at(run, 4)),
    "before a checkpoint is written": (Training, "checkpoint", lambda run: _at(run, 4)),
    "before an epoch is saved": (Training, "checkpoint", lambda run: _at(run, 5)),
    "during evaluation": (
        Training,
        "stop_if_signalled",
        lambda run: _at(run, 5) and not run.state.position.epochs_done,
    ),
    "while best/ is written": (model_folder, "save_file", lambda tensors, path, **_: ".best" in str(path)),
    "after an epoch's last line": (Training, "checkpoint_position", lambda run: _at(run, 5)),
    "while tensors are linked": (storage.os, "link", lambda old, new: "00000005" in str(new)),
    "before an evaluation is noted": (storage.os, "rename", lambda old, new: "00000005" in str(new)),
    "while a checkpoint is written": (checkpoint, "save_file", lambda tensors, path: "00000008" in str(path)),
    "before a checkpoint gets its name": (storage.os, "rename", lambda old, new: "00000010" in str(new)),
    "before LATEST points at it": (checkpoint, "replace_file", lambda path, text: "00000012" in text),
    "while final/ is written": (model_folder, "save_file", lambda tensors, path, **_: ".final" in str(path)),
}


def _at(run: Training, step: int) -> bool:
    return run.state.position.step == step


def die(moment: str) -> None:
    """Let this process be killed as soon as it comes to the moment."""
    holder, name, now = MOMENTS[moment]
    original = getattr(holder, name)

    def function(*args, **kwargs):
        if now(*args, **kwargs):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(holder, name, function)


def test_kills_at_every_kind_of_moment_leave_the_same_bits(tmp_path):
    out = tmp_path / "run"
    for moment in MOMENTS:
        ranks = start_training(1, out, TINY, partial(die, moment))
        assert ranks.wait() == [-signal.SIGKILL], f"{moment}: {ranks.said(0)}"
    assert fingerprint(finish(out)) == fingerprint(finish(tmp_path / "whole"))
    assert not [path for path in out.rglob(".*") if path.name != ".lock"], "what half-done work left is cleared away"


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_no_worker_outlives_a_killed_run(tmp_path):
    ranks = start_training(1, tmp_path / "run", TINY | dict(workers=2, epochs=50))
    ranks.wait_for_step(tmp_path / "run", 2)
    workers = children(ranks.processes[0].pid)
    assert len(workers) >= 2
    ranks.send(0, signal.SIGKILL)
    ranks.wait()
    deadline = time.monotonic() + 10
    while any(alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [worker for worker in workers if alive(worker)]


def alive(pid: int) -> bool:
    """A dead process that nobody has asked for its exit code is a zombie, and holds nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def content(step: int) -> dict[str, torch.Tensor]:
    return {"weights": torch.full((100, 500), float(step)), "counter": torch.tensor(step)}


def save_on_and_on(folder: Path, step: int, done) -> None:
    torch.set_num_threads(1)
    recover_folders(folder)  # as every run does when it starts
    done.send(step)
    while True:
        step += 1
        save_checkpoint(folder, step, content(step), {"note": step})
        done.send(step)


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_kills_during_a_save_tear_nothing(tmp_path, kills):
    """The process does nothing but save, so whenever it is killed, it is saving."""
    rng, context, step = random.Random(0), get_context("fork"), 1
    start = time.monotonic()
    save_checkpoint(tmp_path, step, content(step), {"note": step})
    usual = time.monotonic() - start
    for _ in range(kills):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=save_on_and_on, args=(tmp_path, step, sender))
        process.start()
        sender.close()
        assert receiver.recv() == step
        time.sleep(2 * usual * rng.random())
        process.kill()
        process.join()
        told = max(received(receiver), default=step)
        found = load_checkpoint(tmp_path)
        assert found.step >= told, "what was said to be saved is there"
        assert found.notes == ()
        assert torch.equal(found.tensors["weights"], content(found.step)["weights"])
        assert found.record == {"note": found.step}
        step = found.step
    assert step > kills / 10, "saves were completed, too"


def received(pipe) -> list[int]:
    steps = []
    with suppress(EOFError):
        while pipe.poll():
            steps.append(pipe.recv())
    return steps
