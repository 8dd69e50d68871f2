"""All methods, and those that fit a model.

A method is found by being there: every file of the rooms below may have `METHODS` and `CONTROLS`, tuples of `Method`,
and `BY_NAME`: what is one of so many that it is used when somebody asks for it, and never listed. A folder that is
appended to the `__path__` of a room counts as part of it, so that other packages can add methods.
"""

import pkgutil
from collections.abc import Sequence
from functools import cache
from importlib import import_module

from torch import nn

from vitreous.attribution.gradient import GradCam
from vitreous.attribution.method import Method, cluster_layers, find_trunk, readouts
from vitreous.errors import InputError, nearest

ROOMS = ("vitreous.attribution", "vitreous.clusters")  # loaded when methods are asked for: they stand on this one


def all_methods() -> tuple[Method, ...]:
    return _collect("METHODS", _folders())


def all_controls() -> tuple[Method, ...]:
    """What a method must beat."""
    return _collect("CONTROLS", _folders())


def _folders() -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((room, tuple(import_module(room).__path__)) for room in ROOMS)


@cache
def _collect(table: str, folders: Sequence[tuple[str, Sequence[str]]]) -> tuple[Method, ...]:
    modules = [
        import_module(f"{room}.{module.name}")
        for room, paths in folders
        for module in sorted(pkgutil.iter_modules(paths), key=lambda module: module.name)
    ]
    found = [method for module in modules for method in getattr(module, table, ())]
    return tuple(sorted(found, key=lambda method: method.order))


def methods_for(model: nn.Module) -> list[Method]:
    """The methods that can explain this model. Grad-CAM also at the grid of the clusters, or it would be coarser."""
    backbone, finer = find_trunk(model), []
    if backbone is not None and (layers := cluster_layers(backbone)):
        stage = readouts(backbone).get(layers[-1], layers[-1])
        finer = [GradCam(stage=stage)] if stage < len(backbone.stages) else []
    return [method for method in (*all_methods(), *finer) if method.missing(model) is None]


def controls_for(model: nn.Module) -> list[Method]:
    return [method for method in all_controls() if method.missing(model) is None]


def find_method(name: str, model: nn.Module) -> Method:
    """A method of this model by its name; those that can look at any layer take `stage 2`, or its path, behind it."""
    known = {method.name: method for method in (*methods_for(model), *controls_for(model))}
    if name not in known:
        base, _, place = name.partition(" ")
        asked = next((method for method in _collect("BY_NAME", _folders()) if method.name == base), known.get(base))
        if asked is not None and (placed := asked.at(place, model)) is not None:
            return placed
        elsewhere = {method.name: method for method in all_methods()}
        reason = elsewhere[name].missing(model) if name in elsewhere else None
        why = f"method {name!r} cannot be used here: {reason}" if reason else f"unknown method {name!r}"
        raise InputError(f"{why}; nearest: {nearest(name, list(known))}; all: {', '.join(known)}")
    return known[name]
