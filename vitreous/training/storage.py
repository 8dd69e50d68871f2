"""Files that are either whole or absent: written aside, synced, renamed, and checked by sha256 when read.

A folder is published by renaming a finished temporary folder beside it, so a kill at any moment leaves the old
state or the new one. What reads it again is in `vitreous.manifest`.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError

from vitreous.errors import InputError
from vitreous.manifest import MANIFEST, manifest_of
from vitreous.training.distributed import ALONE, World

T = TypeVar("T")


def write_json(path: Path, content: Any) -> None:
    """Not atomic: for files inside a folder that is published as a whole."""
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def replace_file(path: Path, text: str) -> None:
    """Put `text` where `path` is; a reader, and a crash, see the old content or the new."""
    aside = path.with_name(f".{path.name}.tmp")

    def write() -> None:
        aside.write_bytes(text.encode(errors="surrogateescape"))  # names of files need not be Unicode
        _sync(aside)
        os.replace(aside, path)
        _sync(path.parent)

    try:
        _writing(path, write)
    except InputError:
        aside.unlink(missing_ok=True)
        raise


def publish_folder(folder: Path, write: Callable[[Path], Iterable[str]], world: World = ALONE) -> None:
    """Let `write` fill a temporary folder, add a manifest, and move it to `folder`, replacing what was there.

    `write` returns the names of the files it wrote. Of several processes each writes its own files, at the same time.
    """
    aside = _beside(folder, "tmp")

    def prepare() -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        restore_folder(folder)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()

    def written() -> dict[str, Any]:
        paths = [aside / name for name in write(aside)]
        for path in paths:
            _sync(path)
        return manifest_of(paths)["files"]

    try:
        world.on_main(lambda: _writing(folder, prepare))
        files = world.gather(world.agree(lambda: _writing(folder, written)))
        world.on_main(lambda: _writing(folder, lambda: _move(aside, folder, files)))
    except InputError:
        if world.main:
            shutil.rmtree(aside, ignore_errors=True)
            restore_folder(folder)
        raise


def _move(aside: Path, folder: Path, files: list[dict[str, Any]]) -> None:
    manifest = aside / MANIFEST
    write_json(manifest, {"files": {name: entry for part in files for name, entry in part.items()}})
    _sync(manifest)
    _sync(aside)
    # A folder cannot be replaced in one step. `restore_folder` undoes a kill between the two renames.
    old = _beside(folder, "old")
    if folder.exists():
        os.rename(folder, old)
    os.rename(aside, folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _writing(path: Path, action: Callable[[], T]) -> T:
    """What goes wrong while writing, most often for lack of space, as a message."""
    try:
        return action()
    except (OSError, SafetensorError) as reason:
        raise InputError(
            f"cannot write {path}: {getattr(reason, 'strerror', None) or reason}; what was there before is intact; "
            "free some space (or choose another --out) and run the same command again"
        ) from reason


def published(folder: Path) -> Path | None:
    """Where the folder's last whole state is, also in the instant between the two renames; nothing is changed."""
    return next((path for path in (folder, _beside(folder, "old")) if path.is_dir()), None)


def restore_folder(folder: Path) -> None:
    """Bring back the previous folder if a publication was killed between its two renames."""
    old = _beside(folder, "old")
    if old.exists():
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(old, folder)


def recover(parent: Path) -> None:
    """Undo or clear away what killed writers left half done. Only for the process that may write there."""
    for path in parent.glob(".*.old"):
        restore_folder(parent / path.name[1 : -len(".old")])
    for path in parent.glob(".*.tmp"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _beside(folder: Path, suffix: str) -> Path:
    return folder.with_name(f".{folder.name}.{suffix}")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
