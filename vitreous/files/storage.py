"""Files and folders that are either complete or absent: written to a staging place, synced, then renamed.

A folder is published by renaming a finished staging folder beside it, so a kill at any moment leaves the old state or
the new one. Each published folder has a manifest with the size and sha256 of every file: neither safetensors nor a file
system notices a flipped bit; checking a folder against its manifest does.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError

from vitreous.errors import InputError
from vitreous.files.limits import MAX_RESULTS_BYTES
from vitreous.files.reading import parse_json, reason_of, require_regular
from vitreous.files.writing import replace_content, sync_to_disk, write_text

if TYPE_CHECKING:
    from vitreous.runtime.distributed import World

_T = TypeVar("_T")
MANIFEST = "manifest.json"


class DamagedError(InputError):
    """A stored folder is incomplete, or its content is not what was written."""


def write_json(path: Path, content: Any) -> None:
    """Not atomic: for files inside a folder that is published as a whole."""
    write_text(path, json_text(content))


def json_text(content: Any) -> str:
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def replace_file(path: Path, text: str) -> None:
    """Write a text file atomically: readers, and a crash, see the old content or the new."""
    content = text.encode(errors="surrogateescape")  # names of files need not be Unicode
    _explain_write_errors(path, lambda: replace_content(path, content))


def publish_folder(
    folder: Path,
    write: Callable[[Path], Iterable[str]],
    world: "World | None" = None,
    known: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Let `write` fill a staging folder, add a manifest, and move it to `folder`, replacing what was there.

    `write` returns the names of the files it wrote. Several processes each write their own files, at the same time.
    `known` holds the manifest entries of files that are already in `folder`: if these were damaged since then, the new
    manifest must not hide it.
    """
    from vitreous.runtime.distributed import SINGLE_PROCESS  # not with `import vitreous`: models only read files

    staging, world = _hidden_sibling(folder, "tmp"), world or SINGLE_PROCESS

    def prepare() -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        restore_folder(folder)
        remove_path(staging)
        staging.mkdir()

    def written() -> dict[str, Any]:
        names = list(write(staging))
        fresh = [staging / name for name in names if name not in known]
        for path in fresh:
            sync_to_disk(path)
        return {name: known[name] for name in names if name in known} | manifest_of(fresh)["files"]

    try:
        world.on_main(lambda: _explain_write_errors(folder, prepare))
        files = world.gather(world.agree(lambda: _explain_write_errors(folder, written)))
        world.on_main(lambda: _explain_write_errors(folder, lambda: _move(staging, folder, files)))
    except InputError:
        if world.main:
            remove_path(staging)
            restore_folder(folder)
        raise


def _move(staging: Path, folder: Path, files: list[dict[str, Any]]) -> None:
    manifest = staging / MANIFEST
    write_json(manifest, {"files": {name: entry for part in files for name, entry in part.items()}})
    sync_to_disk(manifest)
    sync_to_disk(staging)
    # A folder cannot be replaced in one step. `restore_folder` repairs a kill between the two renames.
    old = _hidden_sibling(folder, "old")
    if os.path.lexists(folder):
        os.rename(folder, old)
    os.rename(staging, folder)
    sync_to_disk(folder.parent)
    remove_path(old)


def discard_folder(folder: Path) -> None:
    """Remove a folder. A kill leaves it complete or absent; `recover_folders` removes any remains."""
    staging = _hidden_sibling(folder, "tmp")
    remove_path(staging)
    with suppress(OSError):  # what cannot be removed is harmless
        os.rename(folder, staging)
        sync_to_disk(folder.parent)
        remove_path(staging)


def remove_path(path: Path) -> None:
    """Remove a folder and its contents, a file, or a link but not its target; ignore failures."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _explain_write_errors(path: Path, action: Callable[[], _T]) -> _T:
    with write_errors_explained(path):
        return action()


@contextmanager
def write_errors_explained(path: Path) -> Iterator[None]:
    """Turn a failed write, most often for lack of space, into an InputError."""
    try:
        yield
    except (OSError, SafetensorError) as reason:
        raise InputError(
            f"cannot write {path}: {getattr(reason, 'strerror', None) or reason}; what was there before is intact; "
            "free some space (or choose another --out) and run the same command again"
        ) from reason


def require_space(folder: Path, needed: int, purpose: str) -> None:
    """Make sure, before the work starts, that the disk of a folder has enough space."""
    usage = shutil.disk_usage(existing_parent(folder))
    if usage.total and usage.free < needed:  # some network disks report nothing
        raise InputError(
            f"{purpose} need about {amount_text(needed)} in {folder}, where {amount_text(usage.free)} are free; "
            "free some space, or choose another --out"
        )


def existing_parent(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def amount_text(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def folder_bytes(folder: Path) -> int:
    """Total size of the files below a folder; 0 if it does not exist."""
    sizes = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # just gone
            sizes += path.lstat().st_size
    return sizes


def find_published(folder: Path) -> Path | None:
    """Where the last complete state of the folder is, even between the two renames. Changes nothing."""
    return next((path for path in (folder, _hidden_sibling(folder, "old")) if path.is_dir()), None)


def restore_folder(folder: Path) -> None:
    """Bring back the previous folder if a publication was killed between its two renames."""
    old = _hidden_sibling(folder, "old")
    if old.is_symlink():  # we never make one
        remove_path(old)
    elif old.exists():
        if folder.exists():
            remove_path(old)
        else:
            os.rename(old, folder)


def recover_folders(parent: Path) -> None:
    """Repair or remove what killed writers left behind. Only for the process that may write there."""
    for path in parent.glob(".*.old"):
        restore_folder(parent / path.name[1 : -len(".old")])
    for path in parent.glob(".*.tmp"):
        remove_path(path)


def _hidden_sibling(folder: Path, suffix: str) -> Path:
    return folder.with_name(f".{folder.name}.{suffix}")


# ---- reading what was stored, and checking it -----------------------------------------------------------------


def read_stored_json(path: Path) -> Any:
    """The content of a JSON file; anything wrong with it is a DamagedError that names the file."""
    try:
        require_regular(path, MAX_RESULTS_BYTES)
        return parse_json(path.read_bytes())
    except FileNotFoundError as reason:
        raise DamagedError(f"{path} is missing") from reason
    except InputError as reason:
        raise DamagedError(str(reason)) from reason
    except (ValueError, OSError, MemoryError) as reason:
        raise DamagedError(f"{path} is damaged: it cannot be read as JSON ({reason_of(reason)})") from reason


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one per line, none if there is no file; a DamagedError names file and line.

    The last line may be incomplete because its writer was killed; it is then left out.
    """
    try:
        require_regular(path, MAX_RESULTS_BYTES)
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return []
    except InputError as reason:
        raise DamagedError(str(reason)) from reason
    except OSError as reason:
        raise DamagedError(f"{path} cannot be read ({reason.strerror})") from reason
    found = []
    for number, line in enumerate(lines, 1):
        try:
            content = parse_json(line)
            if not isinstance(content, dict):
                raise ValueError(f"a {type(content).__name__} where an object is expected")
        except ValueError as reason:
            if not any(lines[number:]):
                break
            raise damaged_line(path, number, str(reason)) from reason
        found.append(content)
    return found


def damaged_line(path: Path, number: int, reason: str) -> DamagedError:
    return DamagedError(f"{path} is damaged at line {number}: {reason}; repair or remove that line")


def manifest_of(paths: Iterable[Path]) -> dict[str, Any]:
    """The manifest of a folder with these files."""
    return {"files": {path.name: _entry(path) for path in paths}}


def read_manifest(folder: Path, required: Iterable[str]) -> dict[str, Any]:
    """The manifest's entry for every file of a folder, by name."""
    manifest = read_stored_json(folder / MANIFEST)
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or not set(required) <= set(files):
        raise DamagedError(f"{folder / MANIFEST} is damaged: it does not list {', '.join(required)}")
    return files


def verify_folder(folder: Path, required: Iterable[str]) -> None:
    """Compare every file with the manifest; the first difference is a DamagedError that names the file."""
    files = read_manifest(folder, required)
    for name, expected in files.items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise DamagedError(f"{path} is missing, although {MANIFEST} lists it")
        # Compare sizes first: then a large file of another size is not read at all.
        size = expected.get("size") if isinstance(expected, dict) else None
        try:
            same = path.stat().st_size == size and _entry(path) == expected
        except OSError as reason:
            raise DamagedError(f"{path} cannot be read ({reason.strerror})") from reason
        if not same:
            raise DamagedError(f"{path} is damaged: its size or sha256 differs from {MANIFEST}")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _entry(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": sha256(path)}
