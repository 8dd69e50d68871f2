"""A training of a queue: done once, and found again by what it was asked.

A run whose figures are stored is not trained again, so that a queue which was interrupted goes on where it stopped.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vitreous.errors import InputError
from vitreous.files.storage import DamagedError, read_stored_json, write_json


def done_once(
    file: Path, asked: Mapping[str, Any], work: Callable[[], Mapping[str, float]], *, option: str
) -> dict[str, float]:
    """The figures that `work` gives, or gave when it was asked the same.

    Args:
        file: Where they are stored, in the folder of the run.
        asked: What the figures depend on.
        work: Trains and measures.
        option: What to change if the folder holds something else: "--out".
    """
    wanted = json.loads(json.dumps(asked))
    stored = stored_figures(file)
    if stored is None:
        figures = dict(work())
        write_json(file, {**figures, "budget": wanted})
        return figures
    known, figures = stored
    if known != wanted:
        raise InputError(f"{file.parent} was trained with {known}, and {wanted} is asked for; give another {option}")
    return figures


def stored_figures(file: Path) -> tuple[dict[str, Any], dict[str, float]] | None:
    """What was asked and found; None where the file is missing or damaged: a run can be measured again."""
    try:
        content = dict(read_stored_json(file))
        asked = dict(content.pop("budget"))
        return asked, {name: float(value) for name, value in content.items()}
    except (DamagedError, KeyError, TypeError, ValueError):
        return None
