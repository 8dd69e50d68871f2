"""What a run needs later is missed before its first step; epochs outlive evaluations; signals end it whatever hangs."""

import json
import multiprocessing
import os
import pty
import re
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.support.ranks import Ranks, arguments, processes
from tests.support.tiny_data import as_folders
from tests.support.tiny_runs import (
    DENSE,
    DENSE_TASKS,
    PLAIN,
    TINY,
    TINY_PACA_RUN,
    fingerprint,
    run_tiny,
    start,
    wait_for_step,
)
from vitreous.data.loader import WORKER_POLL_SECONDS
from vitreous.errors import InputError, limit_reached, to_install_extra
from vitreous.files.storage import manifest_of, write_json
from vitreous.metrics.coco import CocoMetric
from vitreous.runs.checkpoint import load_checkpoint
from vitreous.runs.run_folder import read_metrics
from vitreous.train import Training, train
from vitreous.training.stop import StopSignals

SHORT = PLAIN | dict(train_count=16, val_count=6)
TASKS = {name: DENSE | settings | dict(epochs=1) for name, settings in DENSE_TASKS.items()} | {"classify": SHORT}


@pytest.fixture
def no_step(monkeypatch):
    """Whoever takes a step fails."""

    def step(*_: object) -> None:
        raise AssertionError("a step was taken")

    monkeypatch.setattr(Training, "step", step)


# ---- before the first step ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["detect", "keypoints"])
def test_a_missing_package_shows_before_the_first_step(tmp_path, monkeypatch, no_step, task):
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(InputError, match=r"needs faster-coco-eval: .*pip install"):
        train(**TASKS[task], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def hide_package() -> None:
    sys.modules["faster_coco_eval"] = None  # type: ignore[assignment]


@pytest.mark.system
def test_a_missing_package_in_several_processes(tmp_path):
    settings = TASKS["detect"] | dict(out=tmp_path / "run")
    ranks = Ranks(2, ["train", *arguments(settings)], tmp_path / "logs", hide_package)
    assert ranks.wait() == [2, 2], ranks.said_by_all()
    assert ranks.said_by_all().count("needs faster-coco-eval") == 1
    assert "Traceback" not in ranks.said_by_all()
    assert not (tmp_path / "run").exists()


def test_a_missing_tensorboard_leaves_nothing(tmp_path, monkeypatch, no_step):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(InputError, match=re.escape(to_install_extra("log"))):
        train(**SHORT, tensorboard=True, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("task", TASKS)
def test_every_task_evaluates_two_pictures_first(tmp_path, monkeypatch, task):
    seen = []
    original = Training.try_evaluation

    def spied(run: Training) -> None:
        metric = run.task.metric

        class Spy:
            def __init__(self) -> None:
                self.inner = metric()

            def update(self, predictions, targets) -> None:
                seen.append(len(predictions))
                self.inner.update(predictions, targets)

            def compute(self) -> dict[str, float]:
                seen.append("computed")
                return self.inner.compute()

        run.task.metric = Spy
        original(run)
        del run.task.metric
        assert run.state.position.step == 0

    monkeypatch.setattr(Training, "try_evaluation", spied)
    train(**TASKS[task], out=tmp_path / "run")
    assert len(seen) == 2
    assert seen[0] >= 2
    assert seen[1] == "computed"


def test_the_rehearsal_changes_no_bit(tmp_path, monkeypatch):
    """With batch norm, averaged weights and everything random."""
    settings = TINY | dict(epochs=1)
    torch.set_num_threads(1)
    rehearsed = fingerprint(train(**settings, out=tmp_path / "rehearsed"))
    monkeypatch.setattr(Training, "try_evaluation", lambda self: None)
    assert fingerprint(train(**settings, out=tmp_path / "plain")) == rehearsed


def disk(free: int, total: int = 10**12):
    return lambda _: SimpleNamespace(total=total, used=total - free, free=free)


def test_a_disk_too_small_for_the_checkpoints(tmp_path, monkeypatch, no_step):
    monkeypatch.setattr("shutil.disk_usage", disk(100_000))
    with pytest.raises(InputError, match=r"need about [\d.]+ MB in .*run, where 100 kB are free; free some space"):
        train(**SHORT, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_space_is_that_of_real_checkpoints(tmp_path, monkeypatch):
    needed = []
    module = sys.modules["vitreous.train"]  # the package has the function under this name
    monkeypatch.setattr(module, "require_space", lambda _, amount, __: needed.append(amount))
    out = train(**TINY | dict(epochs=1), out=tmp_path / "run")
    stored = [sum(path.stat().st_size for path in (out / name).rglob("*")) for name in ("checkpoints", "best")]
    assert needed[0] == pytest.approx(1.5 * stored[0] + stored[1], rel=0.05)  # three of its two generations


def test_what_a_run_has_already_written_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(Training, "validate", broken_evaluation)
    with pytest.raises(RuntimeError):
        train(**SHORT, out=tmp_path / "run")
    monkeypatch.undo()
    free = 3 * sum(path.stat().st_size for path in (tmp_path / "run" / "checkpoints").rglob("*"))
    monkeypatch.setattr("shutil.disk_usage", disk(free))
    train(**SHORT, out=tmp_path / "run")
    assert (tmp_path / "run" / "final").exists()


def test_a_disk_that_tells_nothing_is_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", disk(0, total=0))
    train(**SHORT, out=tmp_path / "run")


def test_a_model_that_could_not_be_stored(tmp_path, no_step):
    settings = SHORT | dict(model="paca_b0", model_args=("layer_scale=1e400",), drop_path=None)
    with pytest.raises(InputError, match="cannot be stored with it"):
        train(**settings, out=tmp_path / "run")


@pytest.mark.parametrize(("broken", "readable"), [(None, False), (3, True)])
def test_a_validation_split_that_cannot_be_read(tmp_path, monkeypatch, broken, readable):
    data = as_folders(tmp_path / "data")
    for path in sorted((data / "val").rglob("*.png"))[:broken]:
        path.write_bytes(b"")
    settings = SHORT | dict(data=str(data), train_count=None, val_count=None, max_corrupt=0.5)
    if readable:
        out = train(**settings, out=tmp_path / "run")
        listed = (out / "bad_images.jsonl").read_text().splitlines()
        assert len(listed) == broken, "looked at before, and counted once"
        return
    monkeypatch.setattr(Training, "step", None)
    with pytest.raises(InputError, match="images in a row cannot be read"):
        train(**settings, out=tmp_path / "run")


@pytest.mark.parametrize("changes", [dict(batch_size=1), dict(batch_size=3, accumulate=2)])
def test_batch_norm_of_a_single_value_names_the_layer(tmp_path, changes):
    with pytest.raises(InputError, match=r"layer '[a-z_]+[\w.]*' \(BatchNorm\w*\) .*raise --batch-size to 2 or more"):
        train(**SHORT | changes, out=tmp_path / "run")
    assert not read_metrics(tmp_path / "run")
    train(**SHORT, out=tmp_path / "run")  # the corrected command is not taken for another run


def test_one_image_at_a_time_without_batch_norm(tmp_path):
    train(**SHORT | dict(model="test_convnext", batch_size=1, train_count=2), out=tmp_path / "run")


# ---- evaluation that fails ---------------------------------------------------------------------------------------


def broken_evaluation(*_: object) -> None:
    raise RuntimeError("evaluation failed")


def test_an_epoch_is_not_lost_when_its_evaluation_fails(tmp_path, monkeypatch, capsys):
    settings = TINY | dict(epochs=2, checkpoint_steps=0)
    torch.set_num_threads(1)
    whole = fingerprint(train(**settings, out=tmp_path / "whole"))
    with monkeypatch.context() as patch:
        patch.setattr(Training, "validate", broken_evaluation)
        with pytest.raises(RuntimeError, match="evaluation failed"):
            train(**settings, out=tmp_path / "run")
    steps, original = [], Training.step

    def counted(run: Training, *args):
        steps.append(run.state.position.step)
        return original(run, *args)

    monkeypatch.setattr(Training, "step", counted)
    capsys.readouterr()
    out = train(**settings, out=tmp_path / "run")
    assert "at step 5 of 10" in capsys.readouterr().out
    assert steps == list(range(5, 10))
    assert fingerprint(out) == whole


def test_a_missing_package_after_an_epoch_costs_nothing(tmp_path, monkeypatch, capsys):
    settings = TASKS["detect"] | dict(epochs=1)
    original = CocoMetric.compute
    calls = []

    def gone(metric: CocoMetric) -> dict[str, float]:
        calls.append(metric)
        if len(calls) == 2:  # the first is the rehearsal's
            raise ImportError("uninstalled meanwhile")
        return original(metric)

    with monkeypatch.context() as patch:
        patch.setattr(CocoMetric, "compute", gone)
        with pytest.raises(ImportError):
            train(**settings, out=tmp_path / "run")
    train(**settings, out=tmp_path / "run")
    assert "at step 2 of 2" in capsys.readouterr().out


@pytest.mark.system
def test_two_processes_keep_an_epoch_whose_evaluation_fails(tmp_path):
    settings = TINY_PACA_RUN | dict(checkpoint_steps=0, out=tmp_path / "run")
    ranks = Ranks(2, ["train", *arguments(settings)], tmp_path / "logs", break_evaluation)
    assert ranks.wait() != [0, 0]
    assert load_checkpoint(tmp_path / "run" / "checkpoints").step == 5
    ranks = Ranks(2, ["train", *arguments(settings)], tmp_path / "logs")
    assert ranks.wait() == [0, 0], ranks.said_by_all()
    assert "at step 5 of 10" in ranks.said_by_all()


def break_evaluation() -> None:
    Training.validate = broken_evaluation  # type: ignore[method-assign]


def test_too_many_unreadable_images_do_not_cost_the_epoch(tmp_path, monkeypatch):
    """Several processes find out together, at the checkpoint."""

    def too_many(*_: object) -> int:
        raise InputError("too many")

    monkeypatch.setattr("vitreous.training.bad_images.BadImages.settle", too_many)
    with pytest.raises(InputError, match="too many"):
        train(**SHORT, out=tmp_path / "run")
    assert load_checkpoint(tmp_path / "run" / "checkpoints").step == 2


# ---- signals -----------------------------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the children of a process")


@pytest.mark.system
@needs_proc
@pytest.mark.timeout(150)
def test_a_signal_ends_a_run_whose_loader_is_stopped(tmp_path):
    """And what it has learnt is saved, however long a worker may be silent."""
    process = start(tmp_path / "run", workers=2, worker_timeout=600.0, train_count=4000, checkpoint_steps=0)
    wait_for_step(tmp_path / "run", 3, process)
    workers = children(process.pid)
    assert len(workers) >= 2
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(3 * WORKER_POLL_SECONDS)  # what was prepared is used up, and the run waits
    os.kill(process.pid, signal.SIGTERM)
    process.join(60)
    assert process.exitcode == 143
    assert load_checkpoint(tmp_path / "run" / "checkpoints").step >= 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


@pytest.mark.system
@needs_proc
@pytest.mark.timeout(150)
def test_a_run_whose_loader_is_stopped_ends_and_keeps_what_it_has_learnt(tmp_path):
    process = start(tmp_path / "run", workers=2, worker_timeout=2.0, train_count=4000, checkpoint_steps=0)
    wait_for_step(tmp_path / "run", 3, process)
    workers = children(process.pid)
    os.kill(workers[0], signal.SIGSTOP)
    process.join(60)
    assert process.exitcode == 1  # of an InputError outside the command line
    assert load_checkpoint(tmp_path / "run" / "checkpoints").step >= 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def on_terminal(terminal: str, out: Path) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup, which is respected
    os.setsid()
    handle = os.open(terminal, os.O_RDWR)  # the first one that a session opens is its terminal
    for stream in (0, 1, 2):
        os.dup2(handle, stream)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    run_tiny(out, dict(train_count=4000, checkpoint_steps=0))


@pytest.mark.system
@pytest.mark.timeout(150)
def test_a_lost_terminal_writes_a_checkpoint(tmp_path):
    here, there = pty.openpty()
    process = processes.Process(target=on_terminal, args=(os.ttyname(there), tmp_path / "run"))
    process.start()
    lost = threading.Event()

    def show() -> None:
        while not lost.is_set():
            os.read(here, 4096)  # or the run would wait for someone to look

    threading.Thread(target=show, daemon=True).start()
    wait_for_step(tmp_path / "run", 3, process)
    lost.set()
    time.sleep(0.2)
    os.close(there)
    os.close(here)
    process.join(60)
    assert process.exitcode == 129
    assert load_checkpoint(tmp_path / "run" / "checkpoints").step >= 3


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.received == 0
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.received == signal.SIGTERM
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_before_the_first_step_leaves_nothing(tmp_path, monkeypatch, no_step):
    def asked(run: Training) -> None:
        run.stop.received = signal.SIGTERM
        run.stop_if_signalled_alone()

    monkeypatch.setattr(Training, "try_evaluation", asked)
    with pytest.raises(SystemExit) as ended:
        train(**SHORT, out=tmp_path / "run")
    assert ended.value.code == 143
    assert not (tmp_path / "run").exists()


# ---- limits of the machine ---------------------------------------------------------------------------------------


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))


def little_memory() -> None:
    original = Training.train_epoch

    def train_epoch(run: Training, epoch: int) -> None:
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + (8 << 20), taken + (8 << 20)))
        original(run, epoch)

    Training.train_epoch = train_epoch  # type: ignore[method-assign]


@pytest.mark.system
@needs_proc
@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("limit", "changes", "says"),
    [
        (few_files, dict(workers=4), "this process may open 40 files, and with 4 workers needs about"),
        (little_memory, dict(size=128, batch_size=40), "there is not enough memory; lower --batch-size"),
    ],
)
def test_limits_of_the_machine_are_one_line(tmp_path, limit, changes, says):
    settings = TINY_PACA_RUN | changes | dict(out=tmp_path / "run")
    ranks = Ranks(1, ["train", *arguments(settings)], tmp_path / "logs", limit)
    codes, said = ranks.wait(), ranks.said(0)
    assert codes == [2], said
    assert says in said
    assert "Traceback" not in said
    assert not multiprocessing.active_children()


def test_other_failures_are_no_limits():
    assert limit_reached(RuntimeError("shapes do not fit")) is None
    assert limit_reached(ValueError("x")) is None
    assert limit_reached(OSError(2, "No such file or directory")) is None


# ---- damaged records ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        {"position": {"step": 2}},
        {"scaler": {}, "position": {"stride": 2}},
        {"scaler": [], "position": 3},
        {"scaler": {}, "position": {"best": "high"}},
    ],
)
def test_a_record_with_other_content_is_named(tmp_path, monkeypatch, record):
    with monkeypatch.context() as patch:
        patch.setattr(Training, "validate", broken_evaluation)
        with pytest.raises(RuntimeError):
            train(**SHORT, out=tmp_path / "run")
    (generation,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    (generation / "record.json").write_text(json.dumps({"step": 2} | record))
    names = ("record.json", "tensors.safetensors")
    write_json(generation / "manifest.json", manifest_of([generation / name for name in names]))
    with pytest.raises(InputError, match=r"step-00000002/record\.json is damaged: its 'scaler' or 'position'"):
        train(**SHORT, out=tmp_path / "run")
