"""Verbs called from Python accept what people pass: "x" for Path("x"), one picture for several, numpy scalars.

    plot = natural(plot)
    plot("runs/demo", out="curves")      # as plot(("runs/demo",), out=Path("curves"))

The type hints of a function say what it needs, and one converter per type produces it. What cannot be converted is an
InputError. Keywords may be singular or plural if only one of the two is a parameter.
"""

import ast
import functools
import inspect
import math
import numbers
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitreous.errors import InputError
from vitreous.runtime.console import messages_on_stderr

_P = ParamSpec("_P")
_R = TypeVar("_R")
_S = TypeVar("_S")

TYPE_NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "text or a path", Path: "a path"}


class ConversionError(ValueError):
    """A value cannot be converted to a type; the message says what is needed."""


def natural(
    function: Callable[_P, _R], *, pictures: str | None = None, trained: type | None = None
) -> Callable[_P, _R]:
    """The function, with every argument converted to the type of its parameter.

    `pictures` names a parameter for several paths that also takes pictures in memory. `trained` is the type of models
    in memory, which the parameter `model` then takes as they are.
    """
    signature, hints = inspect.signature(function), get_type_hints(function, include_extras=True)

    @functools.wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        known = with_known_names(kwargs, signature)
        bound = signature.bind(*args, **known)
        for name, value in bound.arguments.items():
            if name == "model" and trained is not None and isinstance(value, trained):
                continue
            try:
                fit = to_pictures(value) if name == pictures else convert(value, hints.get(name, Any))
            except ConversionError as reason:
                other = ", or what vitreous.load_model gives," if name == "model" and trained is not None else ""
                raise InputError(f"{name}={describe_value(value)} given; {reason}{other} is needed") from None
            bound.arguments[name] = fit
        with messages_on_stderr():
            return function(*bound.args, **bound.kwargs)

    return called


def with_known_names(given: dict[str, Any], signature: inspect.Signature) -> dict[str, Any]:
    """Keywords under the parameters' names: `method` for `methods`, or the other way round."""
    known, result = signature.parameters, {}
    for name, value in given.items():
        others = (name.removesuffix("s"), f"{name}s")
        meant = name if name in known else next((other for other in others if other in known), name)
        if meant in result or (meant != name and meant in given):
            raise InputError(f"{name} and {meant} given, which mean the same; give one")
        result[meant] = value
    return result


def convert(value: Any, hint: Any) -> Any:
    """The value as its type requires it, or a `ConversionError`."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return convert(value, inner[0])
    if origin in (Union, UnionType):
        return convert_to_any(value, inner)
    if origin is Literal:
        if isinstance(value, str | int) and value in inner:
            return inner[inner.index(value)]
        raise ConversionError(f"one of {', '.join(map(repr, inner))}")
    if origin is tuple:
        return to_tuple(value, inner)
    if hint in CONVERTERS:
        return CONVERTERS[hint](value)
    if isinstance(hint, type) and not isinstance(value, hint):
        raise ConversionError(f"a {hint.__name__}")
    return value


def convert_to_any(value: Any, hints: tuple[Any, ...]) -> Any:
    """The first type that fits; the value's own type is tried first."""
    if value is None and NoneType in hints:
        return None
    reasons = []
    for hint in sorted((hint for hint in hints if hint is not NoneType), key=lambda hint: type(value) is not hint):
        try:
            return convert(value, hint)
        except ConversionError as reason:
            reasons.append(str(reason))
    raise ConversionError(" or ".join(dict.fromkeys(reasons)))


def to_tuple(value: Any, inner: tuple[Any, ...]) -> tuple[Any, ...]:
    """A tuple of any length (one value is a tuple of one), or of a fixed length."""
    if isinstance(value, dict) and inner == (str, Ellipsis):
        return tuple(to_assignment(name, one) for name, one in value.items())
    single = isinstance(value, str | bytes | os.PathLike | dict) or getattr(value, "ndim", 1) == 0
    several = list(value) if isinstance(value, Iterable) and not single else [value]
    hints = [inner[0]] * len(several) if inner[-1] is Ellipsis else list(inner)
    if len(hints) != len(several):
        raise ConversionError(f"{len(hints)} values")
    return tuple(convert(one, hint) for one, hint in zip(several, hints, strict=True))


def to_assignment(name: Any, value: Any) -> str:
    """One entry of a dictionary as the command line takes it: --model-args depths=(1,1,1,1)."""
    plain = unwrap_scalar(value)
    try:
        same = ast.literal_eval(repr(plain)) == plain
    except (ValueError, SyntaxError):
        same = False
    if not same:
        raise ConversionError("a dictionary of names to numbers, texts and tuples of them")
    return f"{name}={plain!r}"


def to_pictures(value: Any) -> tuple[Any, ...]:
    """Paths as text, pictures as they are. An array is one picture, unless it has four axes.

    Bytes and open files count as one item; `as_picture` says what to do with them.
    """
    several: list[Any]
    if isinstance(value, str | os.PathLike | Image.Image | bytes | bytearray) or hasattr(value, "read"):
        several = [value]
    elif isinstance(value, np.ndarray | Tensor):
        several = list(value) if value.ndim == 4 else [value]
    elif isinstance(value, Iterable):
        several = list(value)
    else:
        raise ConversionError("a path or a picture, or several of them,")
    return tuple(to_text(one) if isinstance(one, str | os.PathLike) else one for one in several)


# ---- one converter per type ---------------------------------------------------------------------------------------


def unwrap_scalar(value: Any) -> Any:
    """The number in an array or tensor of one element, such as `logits.argmax(1)` of one picture."""
    return (
        value.item() if isinstance(value, np.generic | np.ndarray | Tensor) and math.prod(value.shape) == 1 else value
    )


def to_bool(value: Any) -> bool:
    value = unwrap_scalar(value)
    if isinstance(value, bool) or (isinstance(value, numbers.Integral) and value in (0, 1)):
        return bool(value)
    raise ConversionError(TYPE_NAMES[bool])


def to_int(value: Any) -> int:
    value = unwrap_scalar(value)
    whole = isinstance(value, numbers.Integral) or (isinstance(value, numbers.Real) and float(value).is_integer())
    if whole and not isinstance(value, bool):
        return int(value)
    raise ConversionError(TYPE_NAMES[int])


def to_float(value: Any) -> float:
    value = unwrap_scalar(value)
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    raise ConversionError(TYPE_NAMES[float])


def to_text(value: Any) -> str:
    if isinstance(value, str | os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, list | tuple) and value and all(isinstance(one, numbers.Real) for one in value):
        return ",".join(str(one) for one in value)  # as on the command line: --region 10,20,200,150
    raise ConversionError(TYPE_NAMES[str])


def to_path(value: Any) -> Path:
    if isinstance(value, str | os.PathLike):
        return Path(value)
    raise ConversionError(TYPE_NAMES[Path])


CONVERTERS: dict[Any, Callable[[Any], Any]] = {bool: to_bool, int: to_int, float: to_float, str: to_text, Path: to_path}


def describe_value(value: Any) -> str:
    """What was given, for a message."""
    named = isinstance(value, np.ndarray | Tensor | Image.Image | nn.Module)
    text = f"<{type(value).__name__}>" if named or "\n" in repr(value) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


# ---- a settings class as the signature of a function ------------------------------------------------------------


def takes(
    settings: Callable[_P, _S], build: Callable[..., _S] | None = None
) -> Callable[[Callable[[_S], _R]], Callable[_P, _R]]:
    """Let a function of one settings object be called with the settings themselves: `train("paca_b0", "shapes")`.

    Signature, type checks and help are those of the settings class. `build` makes the object from the arguments, where
    calling the class is not enough.
    """
    build = settings if build is None else build

    def decorate(function: Callable[[_S], _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def verb(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            return function(build(*args, **kwargs))

        hints, documented = get_type_hints(settings), get_type_hints(settings, include_extras=True)
        fields = inspect.signature(settings).parameters.values()
        parameters = [field.replace(annotation=hints[field.name]) for field in fields]
        returned = get_type_hints(function)["return"]
        rows = [f"    {field.name}: {documented[field.name].__metadata__[0].documentation}" for field in fields]
        verb.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
        verb.__annotations__ = {field.name: field.annotation for field in parameters} | {"return": returned}
        verb.__doc__ = "\n".join([f"{inspect.getdoc(function)}\n\nArgs:", *rows])
        return verb

    return decorate
