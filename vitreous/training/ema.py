"""Exponential moving average of a model's weights, kept as a second model that can be evaluated at any time."""

import copy

import torch
from torch import Tensor, nn


class WeightAverage:
    """Average of parameters and floating-point buffers; counters are copied.

    The decay rises with the step as (1 + step) / (10 + step) until it reaches the given one, so that short runs do
    not drag their random initialisation along. Being a function of the step, it need not be stored.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        average, source = _state(self.model), _state(model)
        averaged = [name for name, tensor in source.items() if tensor.is_floating_point()]
        # Gathered once: both models keep their tensors for the whole run.
        self._average = [average[name] for name in averaged]
        self._source = [source[name] for name in averaged]
        self._copied = [(average[name], source[name]) for name in source if name not in set(averaged)]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After optimiser step `step`, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._average, self._source, 1 - decay)
        for average, source in self._copied:
            average.copy_(source)


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Detached views of parameters and buffers, those outside `state_dict` included."""
    return {name: tensor.detach() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
