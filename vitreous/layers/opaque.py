"""Parts of a network that compilers call as one operation instead of looking into them.

Inference on a CPU computes maps tile by tile, and every thread has images or tiles of its own. A compiler that looked
inside would make whole maps, shared by all threads: at 224 x 224 in batches of 8 such a program of `paca_tiny` took 1.3
times as long as eager, and 30 to 80 seconds to make; with stages as single operations it is as fast, and made in 6.

Shapes: B batch, H W grid, C channels, M clusters.
"""

import itertools
from collections.abc import MutableMapping
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from vitreous.layers.plain import is_divisible
from vitreous.runtime.threads import concurrent_pieces, in_threads, threads_allowed, twin

BYTES_TOGETHER = 5 << 20  # of the tokens of the images that one thread computes together
SWITCHED_BY = ("gates", "closed", "listening", "note_clusters")  # of modules, which change what they compute
MOST_BYTES_APART = 32 << 20  # of an image's tokens, for a thread to have it alone; larger ones are divided into tiles

_numbers = itertools.count()
_parts: MutableMapping[int, "OpaquePart"] = WeakValueDictionary()


class OpaquePart(nn.Module):
    """A module with a forward pass of its own for inference on a CPU, which keeps the shape of its tokens.

    An operation can be given tensors only, so each part has a number in one; copies have others.
    """

    number: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._take_number()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._take_number()

    def _take_number(self) -> None:
        number = next(_numbers)
        self.number = torch.tensor(number, device="cpu")
        _parts[number] = self

    def inferred(self, x: Tensor, given: Tensor | None) -> Tensor:
        """Tokens (B, H, W, C), from such tokens and perhaps an assignment (B, M, H, W)."""
        raise NotImplementedError


class _Inference(nn.Module):
    """`inferred` as a forward pass."""

    def __init__(self, part: OpaquePart) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor, given: Tensor | None) -> Tensor:
        return self.part.inferred(x, given)


def worth_hiding(part: OpaquePart, x: Tensor) -> bool:
    """Whether a compiler looks on, and what it sees is inference on a CPU with ordinary weights."""
    if not torch.compiler.is_compiling() or torch.compiler.is_exporting() or torch.is_grad_enabled() or part.training:
        return False
    plain = all(type(weight) in (Tensor, nn.Parameter) for weight in tensors_of(part))
    if any(getattr(module, name, None) for module in part.modules() for name in SWITCHED_BY):
        return False  # the compiler sees what its own function sets; the operation would not until the function ends
    return plain and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def as_one_operation(part: OpaquePart, x: Tensor, given: Tensor | None) -> Tensor:
    """What `part.inferred` gives, with the hooks that its modules have when it is called."""
    return compute_part(x, given, part.number, tensors_of(part))


def tensors_of(part: OpaquePart) -> list[Tensor]:
    return [*part.parameters(), *part.buffers()]


@torch.library.custom_op("vitreous::compute_part", mutates_args=())
def compute_part(x: Tensor, given: Tensor | None, number: Tensor, weights: list[Tensor]) -> Tensor:
    part = _parts[int(number)]
    if any(own.data_ptr() != weight.data_ptr() for own, weight in zip(tensors_of(part), weights, strict=True)):
        # The program has others in their place, as `torch.func.functional_call` puts them.
        inference = twin(_Inference(part))  # other threads may be computing with the weights of the model itself
        names = [name for name, _ in (*inference.named_parameters(), *inference.named_buffers())]
        return torch.func.functional_call(inference, dict(zip(names, weights, strict=True)), (x, given))
    if not is_divisible(part):  # what a hook is given it may keep, or give back: no memory of the program's
        return part.inferred(x.clone(), None if given is None else given.clone()).clone()
    if len(x) < 2 or x[0].nbytes > MOST_BYTES_APART or not threads_allowed(x):
        return part.inferred(x, given)
    together = min(-(-len(x) // concurrent_pieces()), max(1, BYTES_TOGETHER // x[0].nbytes))
    images = [slice(first, first + together) for first in range(0, len(x), together)]
    return torch.cat(in_threads(lambda some: part.inferred(x[some], None if given is None else given[some]), images))


@compute_part.register_fake
def _(x: Tensor, given: Tensor | None, number: Tensor, weights: list[Tensor]) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)
