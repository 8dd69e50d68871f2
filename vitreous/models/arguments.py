"""Arguments that several families take: what they pass on to `Backbone`, and checks with helpful messages."""

import ast
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict, TypeVar

from vitreous.errors import InputError, nearest
from vitreous.files.limits import MAX_ARGUMENT_CHARS
from vitreous.files.reading import truncate
from vitreous.layers.patch import HALVINGS

Settings = TypeVar("Settings")


class BackboneOptions(TypedDict, total=False):
    """What every family passes on to `Backbone`."""

    num_classes: int
    in_chans: int
    global_pool: str | None
    drop_rate: float


ARGUMENT_MEANINGS = {  # of arguments with the same meaning in every family, for `vitreous info`
    "dims": "Channels, per stage.",
    "depths": "Blocks, per stage.",
    "heads": "Attention heads, per stage.",
    "mlp_ratios": "Hidden channels of the feed-forward layers per channel, per stage.",
    "drop_path_rate": "Stochastic depth: how often a branch is skipped in training.",
    "num_classes": "Outputs of the classifier; 0 for none.",
    "in_chans": "Channels of the images.",
    "global_pool": "How the last map becomes one vector; '' for not at all.",
    "drop_rate": "Dropout before the classifier.",
}


def split_options(
    settings: type[Settings], options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[Settings, BackboneOptions]:
    """A family's own settings, a dataclass, and the options for `Backbone`, which refuses unknown names."""
    known = [field.name for field in fields(settings)]  # type: ignore[arg-type]
    own = {name: value for name, value in options.items() if name in known}
    common = BackboneOptions(**{name: value for name, value in options.items() if name not in known})  # type: ignore[typeddict-item]
    return settings(**{**defaults, **own}), common


def unknown_argument(family: type, settings: Any, name: str) -> InputError:
    """The error for a name that neither the family, nor its settings, nor `Backbone` knows."""
    known = [p.name for p in inspect.signature(family).parameters.values() if p.kind is not p.VAR_KEYWORD]
    known += [field.name for field in fields(settings)] if settings is not None else []
    known += BackboneOptions.__annotations__
    return InputError(
        f"unknown {family.__name__} argument {name!r}; nearest: {nearest(name, known)}; all: {', '.join(known)}"
    )


def check_rows(dims: Sequence[int], **rows: Sequence[Any]) -> None:
    """Every row has an entry for every stage."""
    for name, row in {"dims": dims, **rows}.items():
        if not isinstance(row, Sequence):
            raise InputError(f"{name}={row!r} given; give a tuple with an entry for every stage")
        if len(row) != len(dims):
            raise InputError(f"{name}={tuple(row)} has {len(row)} entries; dims={tuple(dims)} needs {len(dims)}")


def check_heads(dims: Sequence[int], heads: Sequence[int]) -> None:
    for dim, head in zip(dims, heads, strict=True):
        if head < 1 or dim % head:
            raise InputError(f"{head} heads cannot divide {dim} channels evenly; choose a divisor of {dim}")


def check_positive_ints(**counts: int) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise InputError(f"{name}={count!r} given; it must be a whole number, at least 1")


def check_flags(**flags: bool) -> None:
    """Refuse strings: any of them, even "no", would count as true."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InputError(f"{name}={flag!r} given; accepted: True, False")


def check_stem_stride(stride: int) -> None:
    if stride not in HALVINGS:
        raise InputError(f"stem_stride={stride!r} given; accepted: {', '.join(map(str, sorted(HALVINGS)))}")


def parse_model_arg(text: str, setting: str = "model_args") -> tuple[str, Any]:
    """Parse `clusters=(49,49,49,0)` into a name and a Python value; anything but a literal is a string."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InputError(f"{setting} '{truncate(text)}' cannot be read; write name=value, e.g. clusters=(49,49,49,0)")
    if len(text) > MAX_ARGUMENT_CHARS:
        raise InputError(f"{setting} '{name}' has {len(text):,} characters; at most {MAX_ARGUMENT_CHARS:,} are read")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
    except (RecursionError, MemoryError) as reason:  # Python's own parser, for thousands of signs or brackets
        raise InputError(f"{setting} '{name}' cannot be read: its value is nested too deeply") from reason
