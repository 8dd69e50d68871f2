"""AdamW with weight decay only where it belongs, and its learning rate over the steps."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from timm.models import group_parameters
from torch import Tensor, nn

from vitreous.errors import InputError
from vitreous.runtime.parallel import local_part


@dataclass(frozen=True)
class Schedule:
    """Factor on the highest learning rate at an optimiser step, counted from 0: nothing to store or to restore.

    Rises linearly from `start` over `warmup` steps, starting above it, then falls until `steps`: along half a cosine,
    as a power of the remaining share of steps, or in jumps. It never falls below `floor`, and stays there afterwards.

    >>> cosine = Schedule("cosine", steps=6, warmup=2)
    >>> [round(cosine(step), 2) for step in range(8)]
    [0.5, 1.0, 1.0, 0.85, 0.5, 0.15, 0.0, 0.0]
    """

    shape: Literal["cosine", "step", "poly"]
    steps: int
    warmup: int = 0
    start: float = 0.0
    floor: float = 0.0
    milestones: tuple[int, ...] = ()  # of `step`: at each of these steps it is multiplied by `factor`
    factor: float = 0.1
    power: float = 1.0  # of `poly`

    def __call__(self, step: int) -> float:
        warmup = min(self.warmup, self.steps)
        if step < warmup:
            return self.start + (1 - self.start) * (step + 1) / warmup
        if step >= self.steps:
            return self.floor
        if self.shape == "step":
            return max(self.floor, self.factor ** bisect_right(self.milestones, step))
        progress = (step - warmup) / (self.steps - warmup)
        left = (1 - progress) ** self.power if self.shape == "poly" else 0.5 * (1 + math.cos(math.pi * progress))
        return self.floor + (1 - self.floor) * left


def build_optimizer(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    layer_decay: float = 1.0,
    head_lr: float = 1.0,
) -> torch.optim.AdamW:
    """AdamW without weight decay for biases, norms, other 1-D tensors and what `no_weight_decay()` of the model names.

    With `layer_decay` below 1 the learning rate of each layer is that factor times the next layer's. A head comes after
    the last layer of its backbone; `head_lr` is a factor on its learning rate. The schedule scales `initial_lr`.
    """
    path, _ = layered_part(model)
    exempt, scales = exempt_parameters(model), layer_scales(model, layer_decay)
    if path:
        scales |= {name: head_lr for name, _ in model.named_parameters() if not name.startswith(path)}
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decay, rate = 0.0 if name in exempt else weight_decay, lr * scales.get(name, 1.0)
            group = groups.setdefault((rate, decay), dict(params=[], weight_decay=decay, lr=rate, initial_lr=rate))
            group["params"].append(parameter)
    # One fused kernel instead of a dozen: 2-4 times faster, on the CPU as well.
    return torch.optim.AdamW(list(groups.values()), lr=lr, betas=betas, eps=eps, fused=True)


def layered_part(model: nn.Module) -> tuple[str, Any]:
    """The part of a model that describes its layers, as timm's and our models do, and the prefix of its parameters.

    That is all of a classifier, and the backbone of a model with a head. Some backbones of timm describe only their
    maps.
    """
    for sign in ("group_matcher", "feature_info"):
        for path, module in model.named_modules():
            if hasattr(module, sign):
                return f"{path}." if path else "", module
    return "", model


def exempt_parameters(model: Any) -> set[str]:
    """Names of parameters without weight decay. Models of timm may give shell-style patterns."""
    path, trunk = layered_part(model)
    patterns = [path + name for name in trunk.no_weight_decay()] if hasattr(trunk, "no_weight_decay") else []
    return {
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim <= 1 or any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def layer_scales(model: Any, decay: float) -> dict[str, float]:
    """Name -> factor on the learning rate: 1 for the last layer group of the model, `decay` for the one before, …"""
    if decay == 1:
        return {}
    path, trunk = layered_part(model)
    if not hasattr(trunk, "group_matcher"):
        raise InputError(
            f"layer_decay {decay} given, but {type(model).__name__} does not describe its layers; leave it out"
        )
    layers = group_parameters(trunk, trunk.group_matcher(coarse=False), reverse=True)
    last = max(layers.values()) + bool(path)
    return {path + name: decay ** (last - layer) for name, layer in layers.items()}


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def set_weight_decay(optimizer: torch.optim.Optimizer, decay: float) -> None:
    """Of the parameters that have any."""
    for group in optimizer.param_groups:
        group["weight_decay"] = decay if group["weight_decay"] else 0.0


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as tensors named `<parameter>/<quantity>`; the rest comes from the settings."""
    return {
        f"{name}/{quantity}": torch.as_tensor(value)
        for name, parameter in model.named_parameters()
        for quantity, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Inverse of `optimizer_tensors`; for sharded parameters, from the rows of this process."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, quantity = key.rpartition("/")
        parameter = parameters[name]
        stored = value.to(parameter.device)
        if value.shape == local_part(parameter).shape:
            # The fused kernel needs moments with the strides of their parameter, channels-last or not.
            stored = torch.empty_like(parameter, dtype=value.dtype, memory_format=torch.preserve_format)
            local_part(stored).copy_(value)
        optimizer.state[parameter][quantity] = stored
