"""Taps: named points inside a model where a map can be recorded; free when nothing listens.

with record(model, "stages.2.*") as maps:      # {module path: tensor}
    logits = model(images)
maps["stages.2.clusters"]                      # (B, M, H, W)
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase

from torch import Tensor, nn

from vitreous.errors import InputError


class Tap(nn.Module):
    """Identity that gives a tensor a name. It has no parameters and no entry in `state_dict`."""

    listening: bool = False  # record() sets it on the instance; code may take a faster path while it is False

    def forward(self, x: Tensor) -> Tensor:
        return x


def tap_names(model: nn.Module) -> list[str]:
    """Paths of all taps of a model, in module order."""
    return [path for path, module in model.named_modules() if isinstance(module, Tap)]


@contextmanager
def record(
    model: nn.Module, *patterns: str, keep: Callable[[Tensor], Tensor] = lambda x: x
) -> Iterator[dict[str, Tensor]]:
    """Record what passes the taps whose path matches any of the shell-style patterns (default: all).

    Grouped taps, such as the `clusters.<j>` of a stage with several assignments, also match by the name of the group:
    "stages.*.clusters" matches all assignments of a model, however many each stage makes.
    The tensors stay attached to the autograd graph, so that explanations can differentiate through them.
    `keep` makes of each what is recorded, where the whole would take too much memory.
    When the block ends, no hook is left, and the dictionary keeps what the last forward pass wrote.
    """
    names = tap_names(model)
    matching = {pattern: [name for name in names if _matches(model, name, pattern)] for pattern in patterns or ("*",)}
    chosen = [name for name in names if any(name in found for found in matching.values())]
    for pattern in patterns:
        if not matching[pattern]:
            raise InputError(
                f"no tap matches {pattern!r}; {type(model).__name__} has: {', '.join(names) or 'no taps'}. "
                "Patterns are shell-style, e.g. 'stages.*.clusters'"
            )
    maps: dict[str, Tensor] = {}
    with ExitStack() as cleanup:
        for name in chosen:
            cleanup.enter_context(_listen(model.get_submodule(name), name, maps, keep))
        yield maps


def _matches(model: nn.Module, name: str, pattern: str) -> bool:
    group = name.rpartition(".")[0]
    grouped = isinstance(model.get_submodule(group), nn.ModuleDict)
    return fnmatchcase(name, pattern) or (grouped and fnmatchcase(group, pattern))


@contextmanager
def _listen(tap: nn.Module, name: str, maps: dict[str, Tensor], keep: Callable[[Tensor], Tensor]) -> Iterator[None]:
    assert isinstance(tap, Tap)
    before = tap.listening
    handle = tap.register_forward_hook(lambda _module, _inputs, output: maps.__setitem__(name, keep(output)))
    tap.listening = True
    try:
        yield
    finally:
        tap.listening = before
        handle.remove()
