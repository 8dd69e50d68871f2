"""docs/crash.md: its commands work, and every message it shows is one that is really given, with its exit code."""

import inspect
import os
import re
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import DistError

import vitreous_command
from tests.support.pages import blocks, dead_links, read
from tests.support.random_samples import Noise, batches
from tests.support.tiny_data import as_folders
from tests.support.tiny_runs import PLAIN
from vitreous.data.loader import STOP_SIGNALS, WORKER_TIMEOUT, BatchSampler, Loader, Unreadable, stack
from vitreous.data.source import open_data
from vitreous.errors import InputError
from vitreous.runs.checkpoint import load_checkpoint, save_checkpoint
from vitreous.runs.run_folder import RunFolder, read_metrics
from vitreous.runtime import distributed
from vitreous.runtime.console import messages_on_stderr
from vitreous.runtime.distributed import Heartbeat
from vitreous.train import Training, train
from vitreous.training.bad_images import BadImages
from vitreous.training.settings import TrainSettings
from vitreous.training.stop import StopRequested

PAGE = "docs/crash.md"
SIGNALS = "SIGTERM, SIGUSR1 (pre-emption), SIGHUP (terminal lost) or Ctrl-C"
ROWS = re.findall(r"^\| (.+?) \| (`.+`|nothing) \| ([^|]+) \|$", read(PAGE), re.M)
MESSAGES = {what: message.strip("`") for what, message, _ in ROWS}
CODES = {what: code for what, _, code in ROWS}
DETECT = dict(model="test_convnext", data="shapes", task="detect", size=32, epochs=1, batch_size=4, train_count=4)
DETECT |= dict(val_count=4, workers=0, device="cpu", log_every=1)
TINY = (
    "--size 32 --epochs 1 --batch-size 8 --train-count 240 --val-count 8 --workers 0 --device cpu --log-every 1 "
    "--model-args 'dims=(8,16,24,32)' 'depths=(1,1,1,1)' 'heads=(1,2,3,4)'"
)


@pytest.mark.system
def test_commands_work(tmp_path: Path) -> None:
    """In a shell, as they stand there, but for small sizes and for waiting no longer than needed."""
    (script,) = blocks(PAGE, "bash")
    script = script.replace("--recipe quick", f"--recipe quick {TINY}")
    script = script.replace("sleep 60", "until [ -s runs/crash/metrics.jsonl ]; do sleep 0.1; done")
    command = f'vitreous() {{ exec {sys.executable} -m vitreous "$@"; }}\n{script}'
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "exit code 143" in done.stdout
    assert re.search(pattern(SIGNALS), done.stdout)
    assert "continuing runs/crash at step" in done.stdout
    trained = [line["step"] for line in read_metrics(tmp_path / "runs/crash") if line["split"] == "train"]
    assert trained == list(range(1, 31))


def pattern(what: str) -> str:
    """A message of the page with `…` for anything."""
    return ".+".join(re.escape(part) for part in MESSAGES[what].split("…"))


# ---- each message, provoked --------------------------------------------------------------------------------------


class NoStore:
    def add(self, *_: object) -> int:
        raise RuntimeError("gone")


def generations(folder: Path) -> list[Path]:
    for step in (10, 20):
        save_checkpoint(folder, step, {"weights": torch.zeros(9)}, {})
    return sorted(folder.glob("step-*"))


def said_of_checkpoints(folder: Path) -> str:
    try:
        return "\n".join(load_checkpoint(folder).notes)
    except InputError as error:
        return str(error)


def damaged_checkpoint(folder: Path) -> str:
    (generations(folder)[-1] / "tensors.safetensors").write_bytes(b"")
    return said_of_checkpoints(folder)


def lost_rename(folder: Path) -> str:
    generations(folder)
    (folder / "LATEST").write_text("step-00000030\n")
    return said_of_checkpoints(folder)


def damaged_checkpoints(folder: Path) -> str:
    for generation in generations(folder):
        (generation / "record.json").write_text("")
    return said_of_checkpoints(folder)


def refusal(action, *args, **kwargs) -> str:
    with pytest.raises(InputError) as refused:
        action(*args, **kwargs)
    return str(refused.value)


def full_disk(folder: Path) -> str:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitreous.runs.checkpoint.save_file", full)
        return refusal(save_checkpoint, folder, 1, {"weights": torch.zeros(9)}, {})


def no_folder(folder: Path) -> str:
    (folder / "file").write_text("")
    return refusal(RunFolder(folder / "file" / "run").__enter__)


def nan_loss(folder: Path) -> str:
    original = Training.loss
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "loss", lambda *args: original(*args) * float("nan"))
        return refusal(train, **PLAIN, out=folder / "run")


def nan_gradient(folder: Path) -> str:
    original = Training.clip_gradients
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "clip_gradients", lambda *args: original(*args) * float("nan"))
        return refusal(train, **PLAIN, out=folder / "run")


def bad_images(folder: Path, capsys) -> str:
    data = as_folders(folder / "data")
    sorted((data / "train").rglob("*.png"))[3].write_bytes(b"")
    train(**PLAIN | dict(data=str(data), train_count=None, val_count=None), out=folder / "run")
    return capsys.readouterr().out


def too_many_bad_images(folder: Path) -> str:
    images = {"train": open_data("shapes", "train", size=(16, 16), count=20)}
    found = BadImages(folder, images, TrainSettings("paca_b0", "shapes").max_corrupt)
    return refusal(found.note, "train", [Unreadable(1, "why"), Unreadable(2, "why")])


class Troubled(Noise):
    def __init__(self, trouble) -> None:
        self.trouble = trouble

    def __getitem__(self, index: int):
        return self.trouble() if index == 5 else super().__getitem__(index)


def killed_loader() -> str:
    return refusal(batches, workers=1, samples=Troubled(lambda: os.kill(os.getpid(), signal.SIGKILL)))


def hanging_loader() -> str:
    loader = Loader(Troubled(lambda: time.sleep(600)), BatchSampler(23, 4), stack, workers=1, worker_timeout=1.5)
    return refusal(list, loader)


def lost_process(capsys) -> str:
    world = distributed.World(torch.device("cpu"), rank=1, size=4, store=NoStore())
    with messages_on_stderr(), pytest.raises(SystemExit) as ended:
        distributed._exit_together(world, DistError("connection closed"), 25.0)
    assert f"{ended.value.code}" == CODES["another process of torchrun gone"]
    return capsys.readouterr().err


class SilentStore:
    """In which no other process counts any further."""

    def add(self, *_: object) -> int:
        return 7


def frozen_process(capfd, monkeypatch) -> str:
    heart, codes = Heartbeat(SilentStore(), 0, 2, timeout=0.5, exit_code=distributed.LOST_CONTACT), []

    def leave(code: int) -> None:
        codes.append(str(code))
        heart._stop.set()

    monkeypatch.setattr("os._exit", leave)
    heart.start()
    heart._listener.join(30)
    assert codes == [CODES["another one frozen"]]
    return capfd.readouterr().err


def hold(folder: Path, pipe) -> None:
    with RunFolder(folder):
        pipe.send("held")
        pipe.recv()


def folder_in_use(folder: Path) -> str:
    context = get_context("fork")
    here, there = context.Pipe()
    other = context.Process(target=hold, args=(folder / "run", there))
    other.start()
    assert here.recv() == "held"
    said = refusal(RunFolder(folder / "run").__enter__)
    here.send("enough")
    other.join()
    return said


def other_settings(folder: Path) -> str:
    with RunFolder(folder / "run") as run:
        run.begin({"lr": 0.1}, {})
        run.log(step=1)
        return refusal(run.holds, {"lr": 0.2}, {}, defaults={}, free=frozenset(), resume=True)


def little_space(folder: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=10**9, used=10**9, free=1000))
        return refusal(train, **PLAIN, out=folder / "run")


def missing_package(folder: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "faster_coco_eval", None)
        return refusal(train, **DETECT, out=folder / "run")


def single_value(folder: Path) -> str:
    return refusal(train, **PLAIN | dict(batch_size=1), out=folder / "run")


def no_memory(folder: Path) -> str:
    def allocate(*_: object) -> None:
        torch.empty(1 << 62, dtype=torch.uint8)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "loss", allocate)
        return refusal(train, **PLAIN, out=folder / "run")


def no_descriptors() -> str:
    def another() -> None:
        raise OSError(24, "Too many open files")

    return refusal(batches, workers=1, samples=Troubled(another))


def damaged_metrics(folder: Path) -> str:
    (folder / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    return refusal(RunFolder(folder).__enter__)


def prepared_link(folder: Path) -> str:
    (folder / ".lock").symlink_to(folder / "elsewhere")
    return refusal(RunFolder(folder).__enter__)


CAUSES = {
    "too little space for the run": little_space,
    "a package is missing": missing_package,
    "batch norm with a single value": single_value,
    "out of memory, but not killed": no_memory,
    "too many open files": no_descriptors,
    "metrics.jsonl damaged": damaged_metrics,
    "a symbolic link in the run folder": prepared_link,
    "newest checkpoint damaged": damaged_checkpoint,
    "its rename was lost": lost_rename,
    "all checkpoints damaged": damaged_checkpoints,
    "disk full": full_disk,
    "disk read-only, no permission": no_folder,
    "loss is NaN or infinite": nan_loss,
    "gradient is": nan_gradient,
    "some images cannot be read": bad_images,
    "too many cannot": too_many_bad_images,
    "loader process killed": killed_loader,
    "loader process hangs": hanging_loader,
    "another process of torchrun gone": lost_process,
    "another one frozen": frozen_process,
    "folder in use by another run": folder_in_use,
    "folder of another run": other_settings,
}


@pytest.fixture
def provoke(tmp_path, request) -> str:
    cause = request.param
    wanted = inspect.signature(cause).parameters
    fixtures = {name: tmp_path if name == "folder" else request.getfixturevalue(name) for name in wanted}
    return cause(**fixtures)


@pytest.mark.parametrize(("what", "provoke"), CAUSES.items(), indirect=["provoke"], ids=CAUSES)
def test_messages_are_those_that_are_given(what: str, provoke: str) -> None:
    assert re.search(pattern(what), provoke, re.S), provoke


def test_every_row_is_checked() -> None:
    elsewhere = {
        "killed: SIGKILL, out of memory, power cut",
        SIGNALS,
        "a second Ctrl-C",
    }
    assert set(MESSAGES) == CAUSES.keys() | elsewhere
    assert {CODES[what] for what in CAUSES} == {"2", "75", "goes on"}


def test_exit_codes_of_signals() -> None:
    codes = CODES[SIGNALS].split(", ")
    assert {int(code) for code in codes} == {StopRequested(getattr(signal, name)).exit_code for name in STOP_SIGNALS}
    assert int(CODES["a second Ctrl-C"]) == vitreous_command.INTERRUPTED
    assert vitreous_command.BAD_INPUT == 2


def test_figures_are_the_defaults() -> None:
    defaults, page = TrainSettings("paca_b0", "shapes"), read(PAGE)
    assert f"`--checkpoint-minutes` ({defaults.checkpoint_minutes:g})" in page
    assert f"`--worker-timeout` ({WORKER_TIMEOUT:g} s)" in page
    assert f"--max-corrupt allows {defaults.max_corrupt:.1%}" in page
    named = {name.replace("-", "_") for name in re.findall(r"`--([a-z-]+)", page)}
    assert all(hasattr(defaults, name) for name in named)
    assert not dead_links(PAGE)
