"""Messages for the user: the exception that carries them, commands to copy, and safe printing of names."""

import difflib
import errno
import importlib.util
import os
import shlex
import shutil
import sys
from pathlib import Path


class InputError(ValueError):
    """Something given to vitreous cannot be used.

    The message says what was given, what is accepted and what to do. The command line prints it
    without a traceback and exits with code 2.
    """


def limit_reached(error: BaseException) -> str | None:
    """What the machine has run out of and what to do about it, or None; torch and Python have no exception for it."""
    text, number = str(error), getattr(error, "errno", None)
    files = ("Too many open files", "received 0 items of ancdata")
    if number in (errno.EMFILE, errno.ENFILE) or any(words in text for words in files):
        return "this process cannot open more files; raise the limit (ulimit -n 4096), or use fewer --workers"
    if isinstance(error, BlockingIOError) or "can't start new thread" in text:
        return "no more processes or threads can be started; raise the limit (ulimit -u), or use fewer --workers"
    memory = ("can't allocate memory", "Cannot allocate memory", "out of memory", "Unable to allocate")
    if isinstance(error, MemoryError) or number == errno.ENOMEM or any(words in text for words in memory):
        return "there is not enough memory; lower --batch-size, --size or --workers, or raise --accumulate"
    return None


def nearest(given: str, known: list[str], count: int = 3) -> str:
    """The known names most like `given`, for the "nearest: …" part of a message."""
    return ", ".join(difflib.get_close_matches(given, known, n=count, cutoff=0.0))


def command(*words: object) -> str:
    """A vitreous command, quoted for a shell.

    >>> command("evaluate", "runs/my photos", "photos")
    "vitreous evaluate 'runs/my photos' photos"
    """
    return shlex.join(["vitreous", *map(str, words)])


def to_install(package: str) -> str:
    """The command that installs a package where this vitreous runs."""
    return f"{_installer()} {_quoted(package)}"


def to_install_extra(extra: str) -> str:
    """The command that adds one of our extras, however vitreous was installed.

    From a source folder, it installs that folder; otherwise the package by name, which pip finds without an index.
    """
    source = Path(__file__).parents[1]
    project = source / "pyproject.toml"
    if project.is_file() and 'name = "vitreous"' in project.read_text(encoding="utf-8"):
        return f"{_installer()} -e {_quoted(f'{_shown(source)}[{extra}]')}"
    return to_install(f"vitreous[{extra}]")


def _installer() -> str:
    """The pip of this Python; another one would install elsewhere."""
    found = shutil.which("pip")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "pip install"
    python = _quoted(_shown(Path(sys.executable)))
    return f"{python} -m pip install" if importlib.util.find_spec("pip") else f"uv pip install --python {python}"


def _quoted(word: str) -> str:
    """Quoted for a shell, preferably with double quotes, which every shell knows."""
    if shlex.quote(word) == word:
        return word
    return shlex.quote(word) if set(word) & set('"$`!\\') else f'"{word}"'


def _shown(path: Path) -> str:
    """Relative to the current folder if the path is inside it: .venv/bin/python."""
    try:
        inside = os.path.relpath(path)
    except (OSError, ValueError):  # the current folder is gone, or on another drive
        return str(path)
    return str(path) if inside.startswith("..") else inside


# Characters that change the direction of the text around them: marks, embeddings, overrides and isolates.
DIRECTION_MARKS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
CONTROL_CATEGORIES = frozenset(("Cc", "Cs", "Zl", "Zp"))  # Unicode: control characters, surrogates, line separators


def printable(text: str, *, keep: str = "") -> str:
    r"""A name that is safe on a terminal: characters that move the cursor or change the direction are written as \x1b.

    Names of files and classes may come from strangers, so every printed name passes through here. A message of several
    lines uses `keep="\n"`.
    """
    return "".join(char if char in keep or not _acts(char) else _escaped(char) for char in text)


def _acts(char: str) -> bool:
    import unicodedata

    return not " " <= char <= "~" and (char in DIRECTION_MARKS or unicodedata.category(char) in CONTROL_CATEGORIES)


def _escaped(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # how Python represents a byte of a file name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
