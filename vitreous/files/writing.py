"""Files are written where their name is, never where a symbolic link under that name points.

Somebody else may have prepared the folder that vitreous writes to: a link called `metrics.jsonl` must not make a run
append to a file outside. A file that is replaced takes the place of a link; one that is opened is refused if it is one.
"""

import os
import stat
from pathlib import Path
from typing import IO, Any

from vitreous.errors import InputError

NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)  # a named pipe would otherwise be waited for
FLAGS = {"w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL}
FLAGS |= {"a": os.O_WRONLY | os.O_CREAT | os.O_APPEND, "a+": os.O_RDWR | os.O_CREAT | os.O_APPEND}


def open_own(path: Path, mode: str, *, binary: bool = False) -> IO[Any]:
    """As `open`, for writing ("w", "x", "a" or "a+"); a link, device or pipe under this name is an InputError."""
    refuse_link(path)
    handle = os.open(path, FLAGS[mode] | NO_FOLLOW | NO_WAIT, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise InputError(f"{path} is no ordinary file; remove it, or choose another place to write to")
    mode = mode.replace("x", "w")
    return os.fdopen(handle, mode + "b") if binary else os.fdopen(handle, mode, encoding="utf-8")


def refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise InputError(
            f"{path} is a symbolic link, and nothing is written through links that others may have prepared; "
            "remove it, or choose another place to write to"
        )


def write_text(path: Path, text: str) -> None:
    """Not atomic: for files inside a folder that is published as a whole."""
    with open_own(path, "w") as file:
        file.write(text)


def replace_content(path: Path, content: bytes) -> None:
    """Put `content` where `path` is, in place of a file or link; a reader, and a crash, see the old or the new."""
    aside = path.with_name(f".{path.name}.tmp")
    aside.unlink(missing_ok=True)  # of a killed writer, or a link that somebody prepared
    try:
        with open_own(aside, "x", binary=True) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that the user named: as `replace_content`, but to what is no file, e.g. /dev/stdout, as it is."""
    content = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    if path.exists() and (stat.S_ISCHR(path.stat().st_mode) or stat.S_ISFIFO(path.stat().st_mode)):
        with open(path, "wb", buffering=0) as stream:
            stream.write(content)
    else:
        replace_content(path, content)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
