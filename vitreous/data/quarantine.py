"""A list of pictures to leave out, which `vitreous check` writes and every verb that opens data honours.

`quarantine.txt` lies in the data's folder and has one picture a line: its name within the data, a tab, the reason.

    train/cat/7.jpg	cannot be decoded: image file is truncated
"""

import re
from collections.abc import Mapping
from pathlib import Path

from vitreous.data.layouts.coco_anywhere import find_coco_files
from vitreous.errors import InputError
from vitreous.files.limits import MAX_LIST_BYTES
from vitreous.files.reading import read_bytes

QUARANTINE_FILE = "quarantine.txt"
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}  # names of files may hold any of these
_UNESCAPED = {written: character for character, written in _ESCAPES.items()}


def quarantine_file(data: str) -> Path:
    """In the folder that is the data, or that holds it."""
    coco = find_coco_files(data)
    path = Path(data).expanduser() if coco is None else coco.pictures[0]
    return (path if path.is_dir() else path.parent) / QUARANTINE_FILE


def read_quarantine(file: Path) -> dict[str, str]:
    """Name -> reason; empty lines and those that begin with # are skipped."""
    try:
        text = read_bytes(file, MAX_LIST_BYTES).decode(errors="surrogateescape")
    except InputError as reason:
        raise InputError(f"cannot read --quarantine: {reason}") from reason
    found: dict[str, str] = {}
    for line in text.split("\n"):
        if line.strip() and not line.startswith("#"):
            name, _, reason_given = line.rstrip("\r").partition("\t")
            found[re.sub(r"\\[\\tnr]", lambda match: _UNESCAPED[match[0]], name)] = reason_given
    return found


def quarantine_text(entries: Mapping[str, str]) -> str:
    """What `read_quarantine` reads."""
    lines = ["# Pictures that are left out: name within the data, tab, reason. Written by vitreous check."]
    for name, reason in entries.items():
        escaped = re.sub(r"[\\\t\n\r]", lambda match: _ESCAPES[match[0]], name)
        lines.append(f"{escaped}\t{' '.join(reason.split())}")
    return "\n".join(lines) + "\n"
