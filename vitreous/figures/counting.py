"""Parameters and multiply-adds of a model, counted on the meta device, where nothing is computed.

Counted are matrix products, convolutions and attention on one image. Element-wise work is not: norms, activations,
softmax, pooling, interpolation.
"""

from collections import defaultdict
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitreous.errors import InputError
from vitreous.models.base import Backbone


class Figures(NamedTuple):
    params: int
    macs: int


def count_model(model: nn.Module, size: tuple[int, int, int]) -> Figures:
    """Parameters, and multiply-adds of one image (C, H, W)."""
    return Figures(sum(p.numel() for p in model.parameters()), sum(work_by_module(model, size).values()))


def work_by_module(model: nn.Module, size: tuple[int, int, int]) -> dict[str, int]:
    """Multiply-adds of one image (C, H, W) by the path of the module that does them; "" is the model itself."""
    model = model.to("meta").eval()
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.no_grad():
            model(torch.empty(1, *size, device="meta"))
    except (AssertionError, RuntimeError) as reason:
        if isinstance(model, Backbone):
            raise
        raise InputError(  # which sizes a model of timm takes shows only when it runs
            f"{type(model).__name__} cannot take images of {size[1]}x{size[2]} pixels ({str(reason).splitlines()[0]}); "
            f"some of timm's can with --model-args dynamic_img_size=True, or with img_size={size[1]} at this size alone"
        ) from reason
    root = type(model).__name__
    flops = {
        path.removeprefix(root).removeprefix("."): sum(by_operation.values())
        for path, by_operation in counter.get_flop_counts().items()
        if path != "Global"
    }
    own: dict[str, int] = defaultdict(int)
    for path, total in flops.items():  # the count of a module includes its children
        own[path] += total // 2
        if path:
            own[_parent(path, flops)] -= total // 2
    return dict(own)


def _parent(path: str, known: dict[str, int]) -> str:
    while path := path.rpartition(".")[0]:
        if path in known:
            return path
    return ""


def figures_of(model: Any, size: tuple[int, int]) -> dict[str, Any]:
    """What `vitreous info` shows of one of timm's or our models at an image size."""
    figures = count_model(model, (model.pretrained_cfg["input_size"][0], *size))
    return dict(
        params=figures.params,
        macs=figures.macs,
        size=size,
        strides=tuple(level["reduction"] for level in model.feature_info),
        channels=tuple(level["num_chs"] for level in model.feature_info),
    )
