"""Writing files under their own names, never through a symbolic link under that name.

Somebody else may have prepared the folder that vitreous writes to: a link called `metrics.jsonl` must not make a run
append to a file outside. Replacing a file also replaces a link; opening one refuses a link.
"""

import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import IO, Any, TextIO

from vitreous.errors import InputError

NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
NO_BLOCK: int = getattr(os, "O_NONBLOCK", 0)  # opening a named pipe would otherwise block
OPEN_FLAGS = {"w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL}
OPEN_FLAGS |= {"a": os.O_WRONLY | os.O_CREAT | os.O_APPEND, "a+": os.O_RDWR | os.O_CREAT | os.O_APPEND}


def open_for_writing(path: Path, mode: str, *, binary: bool = False) -> IO[Any]:
    """Like `open` with "w", "x", "a" or "a+"; a link, device or pipe under this name is an InputError."""
    refuse_link(path)
    handle = os.open(path, OPEN_FLAGS[mode] | NO_FOLLOW | NO_BLOCK, 0o666)
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
    with open_for_writing(path, "w") as file:
        file.write(text)


@contextmanager
def atomic_file(path: Path, *, unique: bool = False) -> Iterator[IO[bytes]]:
    """An open binary file that takes the place of `path`, a file or a link, when the block ends without an error.

    Readers and crashes see the old content or the new. With `unique` several processes may write at the same time.
    """
    staging = path.with_name(f".{path.name}.{secrets.token_hex(4) + '.' if unique else ''}tmp")
    staging.unlink(missing_ok=True)  # left by a killed writer, or a link that somebody prepared
    try:
        with open_for_writing(staging, "x", binary=True) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(staging, path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise
    sync_to_disk(path.parent)


def replace_content(path: Path, content: bytes) -> None:
    """Write a whole file atomically, see `atomic_file`."""
    with atomic_file(path) as file:
        file.write(content)


STANDARD_OUTPUT = Path("-")
_for_results: list[TextIO] = []  # what was standard output before everything else was sent elsewhere


@contextmanager
def standard_output_for_results(path: Path) -> Iterator[None]:
    """While the block runs, what is printed goes to stderr if the result is to go to standard output."""
    if path != STANDARD_OUTPUT:
        yield
        return
    _for_results.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _for_results.pop()


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that the user named: atomically, or straight to standard output (-), a device or a pipe."""
    if path == STANDARD_OUTPUT and _for_results:
        _for_results[-1].write(content if isinstance(content, str) else content.decode(errors="surrogateescape"))
        return
    content = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    if path.exists() and (stat.S_ISCHR(path.stat().st_mode) or stat.S_ISFIFO(path.stat().st_mode)):
        with open(path, "wb", buffering=0) as stream:
            stream.write(content)
    else:
        replace_content(path, content)


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
