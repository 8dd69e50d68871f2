"""The one exception whose message is meant for the person at the keyboard."""


class InputError(ValueError):
    """Something given to vitreous cannot be used.

    The message says what was given, what is accepted and what to do. The command line prints it
    without a traceback and exits with code 2.
    """


def nearest(given: str, known: list[str], count: int = 3) -> str:
    """The known names most like `given`, for the "nearest: …" part of a message."""
    import difflib

    return ", ".join(difflib.get_close_matches(given, known, n=count, cutoff=0.0))


# Characters that change how the text around them is shown: marks, embeddings, overrides and isolates of direction.
DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
UNSEEN = frozenset(("Cc", "Cs", "Zl", "Zp"))  # Unicode's control characters, halves of characters, line separators


def printable(text: str, *, keep: str = "") -> str:
    r"""A name as a terminal may show it: what would move the cursor or turn the text around is written as \x1b.

    Names of files and classes come from strangers; every name that is printed passes through here. A message that has
    several lines of its own says `keep="\n"`.
    """
    return "".join(char if char in keep or not _acts(char) else _escaped(char) for char in text)


def _acts(char: str) -> bool:
    import unicodedata

    return not " " <= char <= "~" and (char in DIRECTIONS or unicodedata.category(char) in UNSEEN)


def _escaped(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # how Python keeps a byte of a file's name that is no Unicode
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
