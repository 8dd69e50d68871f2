"""Convolutions with batch norm on tokens (B, H, W, C).

Outside training a batch norm is one factor and one shift per channel, which the convolution before it can take into
its kernel: the folded layer reads and writes every map once instead of twice.
"""

import torch.nn.functional as F
from torch import Tensor, nn


class ConvNorm(nn.Module):
    """Convolution and batch norm; outside training the norm is part of the kernel."""

    def __init__(
        self, in_dim: int, dim: int, kernel_size: int = 3, stride: int = 1, *, groups: int = 1, bias: bool = False
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_dim, dim, kernel_size, stride, kernel_size // 2, groups=groups, bias=bias)
        self.norm = nn.BatchNorm2d(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2)
        y = self.norm(self.conv(x)) if self.norm.training else self.folded(x)
        return y.permute(0, 2, 3, 1)

    def folded(self, x: Tensor) -> Tensor:
        conv, norm = self.conv, self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        mean = norm.running_mean if conv.bias is None else norm.running_mean - conv.bias
        weight, shift = conv.weight * scale[:, None, None, None], norm.bias - mean * scale
        if conv.kernel_size == (1, 1) and conv.stride == (1, 1) and conv.groups == 1:
            return F.linear(x.permute(0, 2, 3, 1), weight.flatten(1), shift).permute(0, 3, 1, 2)
        return F.conv2d(x, weight, shift, conv.stride, conv.padding, groups=conv.groups)
