"""The run folder: who may write to it, what the run was asked to do, and what it measured.

run.json        every argument, versions, data fingerprint
metrics.jsonl   one JSON object per line
checkpoints/    see checkpoint.py
best/, final/   model folders, see model_folder.py
"""

import json
import math
import os
import platform
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from vitreous.errors import InputError
from vitreous.files.storage import (
    DamagedError,
    damaged_line,
    read_json_lines,
    read_stored_json,
    recover_folders,
    replace_file,
)
from vitreous.files.writing import open_for_writing, refuse_link
from vitreous.runs.trackers import Tracker
from vitreous.runtime.distributed import SINGLE_PROCESS, World
from vitreous.version import __version__

try:
    import fcntl
except ImportError:  # Windows has no record locks; the pid in the lock file still says who uses it
    fcntl = None  # type: ignore[assignment]

RUN, METRICS, LOCK = "run.json", "metrics.jsonl", ".lock"
RUN_FILES = (RUN, METRICS, LOCK, "bad_images.jsonl", "checkpoints", "best", "final", "tensorboard")
TRACKER_FILES = ("wandb", "wandb.json", "mlflow.json")

_held: set[Path] = set()  # record locks do not keep out a second run in the same process


class RunFolder:
    """Exclusive use of a run folder, from `with` to the end of the block or of the process.

    Several processes share it: the first one holds the lock, reads and writes, and tells the others what it finds.
    """

    def __init__(self, path: Path, world: World = SINGLE_PROCESS) -> None:
        self.path, self.world = path, world
        self.metric_lines = 0
        self._made: list[Path] = []  # folders that were not there before, innermost first
        self._trackers: list[Tracker] = []
        self._lock: IO[str] | None = None

    def __enter__(self) -> "RunFolder":
        self.world.on_main(self._enter)
        return self

    def _enter(self) -> None:
        if self.path.resolve() in _held:  # before opening the file: closing it again would release the lock
            raise self._in_use("this process")
        try:
            self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            for name in (*RUN_FILES, *TRACKER_FILES):
                refuse_link(self.path / name)
            self._lock = open_for_writing(self.path / LOCK, "a+")  # held until __exit__
        except OSError as reason:
            raise InputError(
                f"cannot write to output folder '{self.path}' ({reason.strerror}); choose another --out"
            ) from reason
        self._acquire()
        try:
            for folder in (self.path, self.path / "checkpoints"):
                recover_folders(folder)
            self._continue_after(read_metrics(self.path))
        except BaseException:
            self._release()
            raise

    def __exit__(self, *_: object) -> None:
        if not self.world.main:
            return
        for tracker in self._trackers:
            tracker.close()
        self._release()

    def _release(self) -> None:
        _held.discard(self.path.resolve())
        if {path.name for path in self.path.iterdir()} == {LOCK}:  # the run wrote nothing: leave no trace
            (self.path / LOCK).unlink()
            self.path.rmdir()
            for folder in self._made[1:]:
                with suppress(OSError):  # another run has begun beside it
                    folder.rmdir()
        assert self._lock is not None
        self._lock.close()

    def _acquire(self) -> None:
        assert self._lock is not None
        try:
            if fcntl is not None:
                # lockf, not flock: loader workers would inherit a flock and keep it after this process dies.
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._lock.fileno()).st_nlink == 0:  # its owner is removing it
                raise BlockingIOError
        except OSError as reason:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "another process"
            self._lock.close()
            self._lock = None
            raise self._in_use(owner) from reason
        _held.add(self.path.resolve())
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()} on {platform.node()}\n")
        self._lock.flush()

    def _in_use(self, owner: str) -> InputError:
        return InputError(
            f"output folder '{self.path}' is in use by {owner}; wait for it, end it, or choose another --out"
        )

    # -- what the run was asked to do ----------------------------------------------------------------------------

    def holds(
        self,
        arguments: dict[str, Any],
        data: dict[str, str],
        *,
        defaults: dict[str, Any],
        free: frozenset[str],
        resume: bool,
    ) -> bool:
        """Whether the folder already holds this run. Another run, or other files, are an InputError.

        An argument that the run's version of vitreous did not have yet counts as its default. `free` names arguments
        that may change when a run is continued, because they do not change its result.
        """

        def held() -> bool:
            if not (self.path / RUN).exists():
                self._refuse_foreign_files()
                return False
            if not resume:
                raise InputError(
                    f"'{self.path}' already holds a run and --no-resume was given; choose another --out, or remove it"
                )
            before = self._recorded_request()
            now = json.loads(json.dumps(arguments))
            unset = {name: value for name, value in json.loads(json.dumps(defaults)).items() if name in now}
            differing = _differences(unset | before["arguments"], now, free)
            differing += _differences(before["data"], data, frozenset(), kind="data of split ")
            # Until its first step, the settings of a run may still change.
            started = (self.path / "checkpoints").exists() or read_metrics(self.path)
            if differing and started:
                raise InputError(
                    f"'{self.path}' holds a run with other settings ({'; '.join(differing)}); "
                    "choose another --out, or give the same settings to continue that run"
                )
            return not differing

        return self.world.on_main(held)

    def _recorded_request(self) -> dict[str, Any]:
        before = read_stored_json(self.path / RUN)
        for key in ("arguments", "data"):
            if not isinstance(before, dict) or not isinstance(before.get(key), dict):
                raise DamagedError(
                    f"{self.path / RUN} is damaged: its field '{key}' is missing or no dictionary; "
                    "restore the file, or choose another --out"
                )
        return before

    def recorded(self, name: str) -> Any:
        """An argument of the run that the folder holds; None if it holds none."""

        def found() -> Any:
            return self._recorded_request()["arguments"].get(name) if (self.path / RUN).exists() else None

        return self.world.on_main(found)

    def begin(self, arguments: dict[str, Any], data: dict[str, str]) -> None:
        """Record the request of a new run."""
        content = {"arguments": arguments, "data": data, "versions": versions(), "command": sys.argv}
        self.world.on_main(lambda: replace_file(self.path / RUN, json.dumps(content, indent=1) + "\n"))

    def _refuse_foreign_files(self) -> None:
        there = sorted(path.name for path in self.path.iterdir() if path.name != LOCK)
        if there:
            shown = ", ".join(there[:3]) + (", …" if len(there) > 3 else "")
            raise InputError(
                f"output folder '{self.path}' holds other files ({shown}) and no {RUN}; choose an empty or new one"
            )

    # -- what it measured ----------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Time spent on the run, without pauses between starts and without lost work."""
        return self._spent + time.monotonic() - self._start

    def log(self, **values: Any) -> None:
        """Append a line with the time to metrics.jsonl; it is in the file when this returns."""
        if not self.world.main:
            return
        line = {**values, "seconds": round(self.seconds, 2)}
        try:
            with open_for_writing(self.path / METRICS, "a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as reason:
            raise InputError(
                f"cannot write {self.path / METRICS} ({reason.strerror}); checkpoints are intact: "
                "free some space and run the same command again"
            ) from reason
        self.metric_lines += 1
        for tracker in self._trackers:
            tracker.log(line)

    def follow(self, tracker: Tracker) -> None:
        """Send a tracker all lines so far, and every new one."""
        for line in read_metrics(self.path):
            tracker.log(line)
        self._trackers.append(tracker)

    def cut_metrics(self, lines: int) -> None:
        """Drop the lines after a checkpoint: they will be measured again."""

        def cut() -> None:
            kept = read_metrics(self.path)[:lines]
            self._continue_after(kept)
            replace_file(self.path / METRICS, "".join(json.dumps(line) + "\n" for line in kept))

        self.world.on_main(cut)

    def _continue_after(self, lines: list[dict[str, Any]]) -> None:
        self.metric_lines = len(lines)
        self._spent = lines[-1].get("seconds", 0.0) if lines else 0.0
        self._start = time.monotonic()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl. A last line cut off by a kill is left out; other damage is an InputError."""
    lines = read_json_lines(path / METRICS)
    for number, line in enumerate(lines, 1):
        for name in ("step", "seconds"):
            value = line.get(name, 0)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise damaged_line(path / METRICS, number, f"{name!r} is {str(value)[:40]!r}, not a number from 0 up")
    return lines


def best_validation(path: Path, metric: str) -> dict[str, Any] | None:
    """The line of the validation with the highest figure; None if there is none."""
    lines = [line for line in read_metrics(path) if line.get("split") == "val"]
    known = [line for line in lines if isinstance(line.get(metric), int | float)]
    return max(known, key=lambda line: line[metric], default=None)


def versions() -> dict[str, str]:
    import timm
    import torch
    import torchvision

    return {
        "vitreous": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "timm": timm.__version__,
        "platform": platform.platform(),
    }


def _differences(before: dict[str, Any], now: dict[str, Any], free: frozenset[str], kind: str = "") -> list[str]:
    keys = [key for key in {**before, **now} if key not in free and before.get(key) != now.get(key)]
    return [f"{kind}{key}: {before.get(key)!r} there, {now.get(key)!r} now" for key in keys]
