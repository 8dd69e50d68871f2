"""Reading a user's files: bounded, and every failure is one line that names the file.

Readers of data meet files from strangers, which may be truncated, wrong or malicious. `reading` is the one guard around
them: whatever fails inside it means that the file cannot be read. It covers reading only; what is done with the content
afterwards fails as itself.
"""

import csv
import errno
import io
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

import yaml

from vitreous.errors import InputError
from vitreous.files.limits import MAX_CLASS_NAME_CHARS, MAX_FILE_NAME_BYTES, MAX_LIST_BYTES, MAX_PATH_BYTES

MAX_EXCERPT_CHARS = 200  # of a reason, or of a value from a file
MACHINE_REMEDIES = {  # failures that say nothing about the file -> what to do about them
    errno.EMFILE: "raise the limit of open files (ulimit -n), or use fewer --workers",
    errno.ENFILE: "close other programs: the machine has no open files left",
    errno.ENOMEM: "free some memory",
}


@contextmanager
def reading(what: str, *, remedy: str = "correct it, or copy or download it again") -> Iterator[None]:
    """Turn any failure to read `what` into an InputError of one line.

    A missing package or an interruption is not the fault of the file, and passes.
    """
    try:
        yield
    except (InputError, ImportError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in MACHINE_REMEDIES:
            remedy = MACHINE_REMEDIES[error.errno]
        raise InputError(f"{what} cannot be read: {reason_of(error)}; {remedy}") from error


def reason_of(error: BaseException) -> str:
    """Why it failed, in a few words on one line."""
    if isinstance(error, MemoryError):
        return "it asks for more memory than there is"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return truncate(f"line {error.problem_mark.line + 1}: {error.problem or error.context}")
    text = " ".join(str(error).split())
    return truncate(text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}".rstrip(": "))


def truncate(text: str, most: int = MAX_EXCERPT_CHARS) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def excerpt(value: Any) -> str:
    """A value from a file, shortened for a message."""
    if isinstance(value, list | tuple | dict) and len(value) > 8:
        return f"a {type(value).__name__} of {len(value)}"
    try:
        return truncate(repr(value))
    except (ValueError, RecursionError, MemoryError):  # a number of thousands of digits, nesting
        return f"a {type(value).__name__} too long to show"


# ---- files -----------------------------------------------------------------------------------------------------


def require_regular(file: Path, largest: int) -> int:
    """The length of a file. Pipes and devices, whose reading may never end, and what is too large are refused."""
    info = file.stat()
    if not stat.S_ISREG(info.st_mode):
        raise InputError(f"{file} is not a regular file (a folder, pipe, socket or device); give a file")
    if info.st_size > largest:
        raise InputError(f"{file} has {info.st_size:,} bytes; at most {largest:,} are read")
    return info.st_size


def read_bytes(file: Path, largest: int) -> bytes:
    with reading(str(file)):
        size = require_regular(file, largest)
        with file.open("rb") as opened:
            return opened.read(size)


def read_text(file: Path, largest: int = MAX_LIST_BYTES) -> str:
    """UTF-8, with or without a byte order mark."""
    content = read_bytes(file, largest)
    with reading(str(file), remedy="save it as UTF-8"):
        return content.decode("utf-8-sig")


def read_names(file: Path) -> list[str]:
    """Names of classes, see `names_in`."""
    text = read_text(file)
    with reading(str(file), remedy="correct the file"):
        return names_in(text)


def names_in(text: str) -> list[str]:
    """One name per line. The line number is often the class number, so an ambiguous list is refused."""
    rows = rows_in(text.rstrip())
    empty = next((number for number, row in rows if not row), None)
    if empty is not None:
        raise ValueError(f"line {empty} is empty, and names count by their lines; write a name there, or delete it")
    names = [row for _, row in rows]
    if len(names) == 1 and any(mark in names[0] for mark in ",;\t"):
        raise ValueError(f"its only line is {excerpt(names[0])}; write each name on a line of its own")
    return names


def rows_in(text: str) -> list[tuple[int, str]]:
    """Number and content of each line that is not a comment (#)."""
    lines = [line.strip() for line in text.splitlines()]
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_CLASS_NAME_CHARS:
            raise ValueError(f"line {number} has {len(line):,} characters; a name has at most {MAX_CLASS_NAME_CHARS:,}")
    return [(number, line) for number, line in enumerate(lines, 1) if not line.startswith("#")]


def read_json(file: Path, largest: int) -> Any:
    """The content of a JSON file. A file whose first byte rules out JSON is not read further."""
    with reading(str(file)):
        size = require_regular(file, largest)
        with file.open("rb") as opened:
            start = opened.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()
            if not start[:1] or start[:1] not in b'{["-0123456789tfnIN':
                raise ValueError("it does not begin as JSON does")
            opened.seek(0)
            return parse_json(opened.read(size))


def parse_json(text: bytes | str) -> Any:
    """Like `json.loads`, with a ValueError for text that is nested too deeply."""
    try:
        return json.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


# ---- CSV -------------------------------------------------------------------------------------------------------


def parse_csv(text: str, separator: str = ",") -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """The names in the first line, and the rows below it, each with the number of its line; a ValueError names one."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    header = [name.strip() for name in next(reader, [])]
    double = next((name for place, name in enumerate(header) if name in header[:place]), None)
    if double is not None:
        raise ValueError(f"its first line has the column {excerpt(double)} twice")

    def rows() -> Iterator[tuple[int, dict[str, str]]]:
        for cells in reader:
            if len(cells) > len(header):
                raise ValueError(f"line {reader.line_num} has {len(cells)} cells, but the first line has {len(header)}")
            if cells:
                yield reader.line_num, dict(zip_longest(header, (cell.strip() for cell in cells), fillvalue=""))

    return header, rows()


# ---- YAML ------------------------------------------------------------------------------------------------------


class PlainLoader(yaml.SafeLoader):
    """YAML 1.2's plain values: 1e-3 is a number, `no` and `off` are strings.

    References are refused: a few lines of them can expand to more values than fit in memory.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # none of YAML 1.1

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            line = self.peek_event().start_mark.line + 1
            raise ValueError(f"line {line} has a reference (*…); write the value out")
        return super().compose_node(parent, index)


def _plain(kind: str, pattern: str, first: Iterable[str]) -> None:
    """Add a type of value, given a pattern and the characters it may begin with ("" for an empty value)."""
    PlainLoader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(pattern), [*first])


_plain("bool", r"(?:true|false)$", "tf")
_plain("null", r"(?:null|~|)$", ("n", "~", ""))
_plain("int", r"[-+]?[0-9]+$", "-+0123456789")
PlainLoader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node)))  # 010: 10
_plain("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789")


def read_yaml(file: Path, largest: int) -> Any:
    text = read_text(file, largest)
    with reading(str(file)):
        return yaml.load(text, PlainLoader)  # noqa: S506  (derived from SafeLoader)


# ---- names of files within files -------------------------------------------------------------------------------


def problem_of_path(name: str, *, follow: bool) -> str:
    """Why a path that a file names must not be opened; "" if it may be.

    Without `follow` it must stay below the folder that it is relative to. Symbolic links there are followed: they were
    made on this machine.
    """
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        return "is no text that a file can be named by"
    if not name or "\0" in name:
        return "is no text that a file can be named by"
    parts = encoded.replace(b"\\", b"/").split(b"/")
    if len(encoded) > MAX_PATH_BYTES or max(map(len, parts)) > MAX_FILE_NAME_BYTES:
        return f"is longer than the {MAX_FILE_NAME_BYTES} bytes that a file's name can have"
    if not follow and (b".." in parts or os.path.isabs(name) or os.path.splitdrive(name)[0]):
        return "leads out of the data's folder; if that is meant, add --follow"
    return ""


def is_text(value: Any) -> bool:
    """Whether a value is text that can be encoded: without lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
