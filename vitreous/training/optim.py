"""AdamW with weight decay only where it belongs."""

from typing import Any

import torch
from torch import Tensor, nn

Named = list[tuple[str, nn.Parameter]]


def build_optimizer(model: nn.Module, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW; biases, norms, other 1-D tensors and what the model names in `no_weight_decay()` are not decayed.

    The group's `initial_lr` is what the schedule scales.
    """
    decayed, exempt = split_parameters(model)
    groups = [
        {"params": [parameter for _, parameter in decayed], "weight_decay": weight_decay},
        {"params": [parameter for _, parameter in exempt], "weight_decay": 0.0},
    ]
    groups = [group | {"initial_lr": lr} for group in groups if group["params"]]
    # One fused kernel instead of a dozen: 2-4 times faster, on the CPU as well.
    return torch.optim.AdamW(groups, lr=lr, fused=True)


def split_parameters(model: nn.Module) -> tuple[Named, Named]:
    """(decayed, exempt) trainable parameters with their names."""
    named_exempt = set(model.no_weight_decay()) if hasattr(model, "no_weight_decay") else set()  # type: ignore[operator]
    decayed: Named = []
    exempt: Named = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (exempt if parameter.ndim <= 1 or name in named_exempt else decayed).append((name, parameter))
    return decayed, exempt


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's memory as tensors named `<parameter>/<quantity>`; all else in it comes from the settings."""
    return {
        f"{name}/{quantity}": torch.as_tensor(value)
        for name, parameter in model.named_parameters()
        for quantity, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, quantity = key.rpartition("/")
        parameter = parameters[name]
        state: dict[str, Any] = optimizer.state[parameter]
        state[quantity] = (
            _laid_out_like(parameter, value) if value.shape == parameter.shape else value.to(parameter.device)
        )


def _laid_out_like(parameter: Tensor, value: Tensor) -> Tensor:
    """The fused kernel walks through memory: moments need the strides of their parameter, channels-last or not."""
    return torch.empty_like(parameter, dtype=value.dtype, memory_format=torch.preserve_format).copy_(value)
