"""Files that are either whole or absent: written aside, synced, renamed, and checked by sha256 when read.

A folder is published by renaming a finished temporary folder beside it, so a kill at any moment leaves the old
state or the new one. What reads it again is in `vitreous.manifest`.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from vitreous.errors import InputError
from vitreous.manifest import MANIFEST, manifest_of


def write_json(path: Path, content: Any) -> None:
    """Not atomic: for files inside a folder that is published as a whole."""
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def replace_file(path: Path, text: str) -> None:
    """Put `text` where `path` is; a reader, and a crash, see the old content or the new."""
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_text(text, encoding="utf-8")
    _sync(aside)
    os.replace(aside, path)
    _sync(path.parent)


def publish_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary folder, add a manifest, and move it to `folder`, replacing what was there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside, old = _beside(folder, "tmp"), _beside(folder, "old")
    restore_folder(folder)
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        write(aside)
        _seal(aside)
    except (OSError, SafetensorError) as reason:  # most often a full disk
        shutil.rmtree(aside, ignore_errors=True)
        raise InputError(
            f"cannot write {folder}: {getattr(reason, 'strerror', None) or reason}; what was there before is intact; "
            "free some space (or choose another --out) and run the same command again"
        ) from reason
    # A folder cannot be replaced in one step. `restore_folder` undoes a kill between the two renames.
    if folder.exists():
        os.rename(folder, old)
    os.rename(aside, folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


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


def _seal(folder: Path) -> None:
    """Add the manifest and push everything to the disk."""
    paths = sorted(folder.iterdir())
    write_json(folder / MANIFEST, manifest_of(paths))
    for path in [*paths, folder / MANIFEST, folder]:
        _sync(path)


def _beside(folder: Path, suffix: str) -> Path:
    return folder.with_name(f".{folder.name}.{suffix}")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
