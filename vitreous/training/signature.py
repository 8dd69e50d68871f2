"""A settings class as the signature of a function: its name on the command line, its type checks and its help."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, get_type_hints

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")


def takes(
    settings: Callable[P, S], build: Callable[..., S] | None = None
) -> Callable[[Callable[[S], R]], Callable[P, R]]:
    """Let a function of one settings object be called with the settings themselves: `train("paca_b0", "shapes")`.

    Signature, type checks and help are those of the settings class. `build` makes the object from what was given,
    where that is more than to call the class.
    """
    build = settings if build is None else build

    def decorate(function: Callable[[S], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def verb(*args: P.args, **kwargs: P.kwargs) -> R:
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
