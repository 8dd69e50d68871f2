"""The one exception whose message is meant for the person at the keyboard."""

import errno


class InputError(ValueError):
    """Something given to vitreous cannot be used.

    The message says what was given, what is accepted and what to do. The command line prints it
    without a traceback and exits with code 2.
    """


def limit_reached(error: BaseException) -> str | None:
    """What the machine has run out of and what to do, if that is why; torch and Python have no exception for it."""
    text, number = str(error), getattr(error, "errno", None)
    files = ("Too many open files", "received 0 items of ancdata")
    if number in (errno.EMFILE, errno.ENFILE) or any(words in text for words in files):
        return "this process may open no more files; raise the limit (ulimit -n 4096), or use fewer --workers"
    if isinstance(error, BlockingIOError) or "can't start new thread" in text:
        return "no further process or thread can be started; raise the limit (ulimit -u), or use fewer --workers"
    memory = ("can't allocate memory", "Cannot allocate memory", "out of memory", "Unable to allocate")
    if isinstance(error, MemoryError) or number == errno.ENOMEM or any(words in text for words in memory):
        return "there is not enough memory; lower --batch-size, --size or --workers, or raise --accumulate"
    return None


def nearest(given: str, known: list[str], count: int = 3) -> str:
    """The known names most like `given`, for the "nearest: …" part of a message."""
    import difflib

    return ", ".join(difflib.get_close_matches(given, known, n=count, cutoff=0.0))
