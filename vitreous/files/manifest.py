"""Manifests: the size and sha256 of every file in a folder.

Neither safetensors nor a file system notices a flipped bit; checking a folder against its manifest does.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitreous.errors import InputError
from vitreous.files.limits import MAX_RESULTS_BYTES
from vitreous.files.reading import parse_json, reason_of, require_regular

MANIFEST = "manifest.json"


class DamagedError(InputError):
    """A stored folder is incomplete, or its content is not what was written."""


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
