"""Exponential moving average of a model's weights, kept as a second model that can be evaluated at any time."""

import copy
from functools import cached_property

import torch
from torch import Tensor, nn

from vitreous.runtime.parallel import local_part


class WeightAverage:
    """Average of parameters and floating-point buffers; counters are copied.

    The decay rises with the step as (1 + step) / (10 + step) until it reaches the given one, so that short runs do
    not keep their random initialisation. It is a function of the step, so nothing needs to be stored.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.source = decay, model
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After optimiser step `step`, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averages, sources, copied = self._pairs
        torch._foreach_lerp_(averages, sources, 1 - decay)
        for average, source in copied:
            average.copy_(source)

    @cached_property
    def _pairs(self) -> tuple[list[Tensor], list[Tensor], list[tuple[Tensor, Tensor]]]:
        """(averages, sources, pairs to copy); collected once: both models keep their tensors while they train."""
        average, source = _state(self.model), _state(self.source)
        averaged = [name for name, tensor in source.items() if tensor.is_floating_point()]
        copied = [(average[name], source[name]) for name in source if name not in set(averaged)]
        return [average[name] for name in averaged], [source[name] for name in averaged], copied


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Detached views of parameters (this process's part) and buffers, those outside `state_dict` included."""
    return {name: local_part(tensor).detach() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
