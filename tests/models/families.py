"""A small member of every family, and what tests need of it: few blocks, and weights that leave no part silent."""

import timm
import torch
from torch import nn

import vitreous  # noqa: F401  (registers the models)
from vitreous.registry import ENTRIES

FAMILIES = (
    "paca_tiny",
    "paca_tiny_teacher",
    "paca_b0",
    "paca_b0_cifar",
    "xcit_nano_12_p16",
    "xcit_nano_12_p8",
    "emsnet_xxtiny",
    "mat_1",
    "partialformer_b0",
)


def small(name: str, blocks: int = 2, **arguments) -> nn.Module:
    """A model of at most `blocks` blocks per stage: the same kinds of layers, built and run in a moment."""
    full = ENTRIES[name].arguments
    if "depths" in full:
        short = {"depths": tuple(min(depth, blocks) for depth in full["depths"])}
    else:  # a column of equal blocks needs only one for each stage
        short = {"depth": 4, "ends": (0, 1, 2, 3)}
    return timm.create_model(name, **{**short, "num_classes": 5, **arguments})


def awake(model: nn.Module) -> nn.Module:
    """The model with every parameter and statistic away from its start, where some parts are silent."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.5
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator).to(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0, generator=generator)
    return model
