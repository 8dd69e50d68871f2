"""Disks that are full or can no longer be written: one line, exit code 2, and nothing of what was there is lost."""

import os
import re
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.support.ranks import Ranks, arguments, finish_training
from tests.support.tiny_runs import TINY_PACA_RUN, fingerprint
from vitreous.runs.checkpoint import load_checkpoint
from vitreous.train import Training

pytestmark = pytest.mark.system

SETTINGS = TINY_PACA_RUN | dict(epochs=1, ema=0.9)
LAST = 4  # step of the checkpoint that can no longer be written; 5 steps are an epoch, every second one is saved


def start(processes: int, out: Path, logs: Path, before: Callable[[], None] | None = None) -> Ranks:
    return Ranks(processes, ["train", *arguments(SETTINGS | {"out": out})], logs, before)


def mount(folder: Path, *options: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0


@contextmanager
def small_disk(folder: Path, *options: str) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    assert mount(folder, "size=3m", *options)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def may_mount() -> bool:
    try:
        return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


needs_mount = pytest.mark.skipif(not may_mount(), reason="only who may mount can make a small disk")


def fill(disk: Path) -> None:
    """Leave so much that a write begins and cannot end."""
    with open(disk / "filler", "wb") as file:
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        file.write(bytes(free - 64 * 1024))


def forbid_large_files(_: Path) -> None:
    """What the kernel then refuses, it refuses in the middle of a file, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, 64 * 1024))


def from_then_on(trouble: Callable[[Path], None], disk: Path) -> None:
    original = Training.checkpoint

    def checkpoint(run: Training) -> None:
        if run.state.position.step == LAST:
            trouble(disk)
        original(run)

    Training.checkpoint = checkpoint


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        (forbid_large_files, "File too large"),
        pytest.param(fill, "No space left on device", marks=needs_mount),
    ],
)
def test_a_checkpoint_that_cannot_be_written(tmp_path, trouble, says, processes):
    disk = tmp_path / "disk"
    out = disk / "run"
    with ExitStack() as stack:
        if trouble is forbid_large_files:
            disk.mkdir()
        else:
            stack.enter_context(small_disk(disk))
        ranks = start(processes, out, tmp_path / "logs", partial(from_then_on, trouble, disk))
        codes, said = ranks.wait(), ranks.said_by_all()
        assert codes == [2] * processes, said
        assert said.count("vitreous: ") == 1
        assert "Traceback" not in said
        assert re.search(rf"cannot write {out}/checkpoints/step-00000004: .*{says}.*; what was there before is", said)
        assert load_checkpoint(out / "checkpoints").step == 2
        assert not [path for path in out.rglob(".*") if path.name != ".lock"], "no partial file"
        (disk / "filler").unlink(missing_ok=True)
        ranks = start(processes, out, tmp_path / "logs")
        assert ranks.wait() == [0] * processes, ranks.said_by_all()
        assert fingerprint(out) == fingerprint(finish_training(processes, tmp_path / "whole", SETTINGS))


@needs_mount
@pytest.mark.parametrize(("options", "says"), [(("ro",), "Read-only file system"), ((), "No space left on device")])
def test_a_disk_on_which_a_run_cannot_even_begin(tmp_path, options, says):
    with small_disk(tmp_path / "disk", *options):
        if not options:
            with suppress(OSError), open(tmp_path / "disk" / "filler", "wb", buffering=0) as filler:
                while True:
                    filler.write(bytes(4096))
        ranks = start(1, tmp_path / "disk" / "run", tmp_path / "logs")
        codes, said = ranks.wait(), ranks.said(0)
    assert codes == [2], said
    assert said.count("vitreous: ") == 1
    assert "Traceback" not in said
    assert says in said
