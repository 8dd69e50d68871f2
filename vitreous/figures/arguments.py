"""The arguments of our models and their meanings, read from the families themselves."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple, get_type_hints

from vitreous.models.arguments import ARGUMENT_MEANINGS
from vitreous.models.base import Backbone


class Argument(NamedTuple):
    value: Any
    meaning: str


def arguments_of(model: Backbone, given: Mapping[str, Any]) -> dict[str, Argument]:
    """Name -> value and meaning, for a model that was built with the given arguments."""
    signature = inspect.signature(type(model)).parameters
    values = {
        name: given.get(name, parameter.default)
        for name, parameter in signature.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    if model.settings is not None:
        values |= {field.name: getattr(model.settings, field.name) for field in fields(model.settings)}
    values |= dict(
        num_classes=model.num_classes,
        in_chans=model.in_chans,
        global_pool=model.global_pool,
        drop_rate=model.head_drop.p,
    )
    meanings = ARGUMENT_MEANINGS | meanings_in_docstring(type(model)) | meanings_in_fields(type(model.settings))
    return {name: Argument(value, meanings[name]) for name, value in values.items()}


def meanings_in_docstring(family: type) -> dict[str, str]:
    """The `Args:` section of a class, each text on one line."""
    section = (inspect.getdoc(family) or "").partition("Args:\n")[2]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def meanings_in_fields(settings: type) -> dict[str, str]:
    """The `Doc` of every annotated field."""
    hints = get_type_hints(settings, include_extras=True)
    return {name: hint.__metadata__[0].documentation for name, hint in hints.items() if hasattr(hint, "__metadata__")}
