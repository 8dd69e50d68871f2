"""Layers for maps (B, C, H, W), applied to tokens (B, H, W, C), which are channels-last maps."""

from torch import Tensor, nn


def apply_nchw(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)  # two views: nothing is copied
