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
