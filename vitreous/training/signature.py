"""A settings class as the signature of a function, from which its command line, type checks and help follow."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, get_type_hints

_P = ParamSpec("_P")
_S = TypeVar("_S")
_R = TypeVar("_R")


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

        hints = get_type_hints(settings)
        fields = inspect.signature(settings).parameters.values()
        parameters = [field.replace(annotation=hints[field.name]) for field in fields]
        returned = get_type_hints(function)["return"]
        verb.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
        verb.__annotations__ = {field.name: field.annotation for field in parameters} | {"return": returned}
        verb.__doc__ = f"{inspect.getdoc(function)}\n\nArgs:\n{_documented(settings)}"
        return verb

    return decorate


def _documented(settings: Any) -> str:
    hints = get_type_hints(settings, include_extras=True)
    return "\n".join(
        f"    {name}: {hints[name].__metadata__[0].documentation}" for name in inspect.signature(settings).parameters
    )
