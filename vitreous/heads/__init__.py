"""What stands on a backbone: pyramids, detectors, segmenters, heat maps of keypoints.

Losses and predictions are here; which data and metrics belong to them is decided in `tasks`. A module that has heads
lists them in `HEADS`: task -> name of the head -> what builds it. Heads are found by being here.
"""

import pkgutil
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from vitreous.errors import InputError, nearest


def heads_of(task: str, first: tuple[str, ...] = ()) -> dict[str, Callable[..., Any]]:
    """Name -> builder of every head for a task: those in `first`, then all others in the order of their modules."""
    found: dict[str, Callable[..., Any]] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        found |= getattr(import_module(f"{__name__}.{module}"), "HEADS", {}).get(task, {})
    return {name: found[name] for name in (*first, *found) if name in found}


def check_arguments(head: str, given: Iterable[str], accepted: list[str]) -> None:
    """Refuse arguments that a head does not have."""
    for name in given:
        if name not in accepted:
            raise InputError(
                f"unknown argument {name!r} of the head {head!r}; nearest: {nearest(name, accepted, 1)}; "
                f"accepted: {', '.join(accepted)}"
            )


def add_heads(folder: str | Path) -> None:
    """Also look for heads in another folder. Call it before anything is imported from `vitreous.tasks`."""
    __path__.append(str(folder))
