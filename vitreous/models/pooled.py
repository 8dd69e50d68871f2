"""The pooled features of a whole model, ours or timm's: what its classifier takes its answer from."""

from typing import Any

import torch
from torch import Tensor

from vitreous.errors import InputError


def forward_pooled(model: Any, images: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, C)."""
    return model.forward_head(model.forward_features(images), pre_logits=True)


@torch.no_grad()
def pooled_width(model: Any, size: tuple[int, int], name: str) -> int:
    """How many features a picture has; a model that has none to give is refused by its name."""
    if not callable(getattr(model, "forward_head", None)):
        raise InputError(f"model '{name}' has no pooled features; classifiers of ours and timm's have")
    weight, training = next(model.parameters()), model.training
    found = forward_pooled(model.eval(), torch.zeros(1, 3, *size, device=weight.device, dtype=weight.dtype))
    model.train(training)
    if found.ndim != 2:
        raise InputError(
            f"model '{name}' gives features of shape {tuple(found.shape)} for a picture; build it with pooling"
        )
    return found.shape[1]
