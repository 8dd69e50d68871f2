"""Files that are either whole or absent: written aside, synced, renamed, and checked by sha256 when read.

A folder is published by renaming a finished temporary folder beside it, so a kill at any moment leaves the old
state or the new one. Neither safetensors nor a file system notices a flipped bit: the manifest does.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from vitreous.errors import InputError

MANIFEST = "manifest.json"


class DamagedError(InputError):
    """A stored folder is incomplete or its content is not what was written."""


def read_json(path: Path) -> Any:
    """The content of a JSON file; anything wrong with it is a DamagedError that names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as reason:
        raise DamagedError(f"{path} is missing") from reason
    except (ValueError, RecursionError, OSError) as reason:
        raise DamagedError(f"{path} is damaged: it cannot be read as JSON ({reason})") from reason


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


def verify_folder(folder: Path, required: Iterable[str]) -> None:
    """Compare every file with the manifest; the first difference is a DamagedError that names the file."""
    manifest = read_json(folder / MANIFEST)
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or not set(required) <= set(files):
        raise DamagedError(f"{folder / MANIFEST} is damaged: it does not list {', '.join(required)}")
    for name, expected in files.items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise DamagedError(f"{path} is missing, although {MANIFEST} lists it")
        if _entry(path) != expected:
            raise DamagedError(f"{path} is damaged: its size or sha256 differs from {MANIFEST}")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    write_json(folder / MANIFEST, {"files": {path.name: _entry(path) for path in paths}})
    for path in [*paths, folder / MANIFEST, folder]:
        _sync(path)


def _entry(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": sha256(path)}


def _beside(folder: Path, suffix: str) -> Path:
    return folder.with_name(f".{folder.name}.{suffix}")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
