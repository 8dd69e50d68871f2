"""Convolutions with batch norm, and layers made of them, on tokens (B, H, W, C).

Outside training a batch norm is a scale and a shift per channel, which can be folded into the convolution before it.
The folded layer reads and writes every map once instead of twice.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.layers.inference import product
from vitreous.layers.patch import HALVINGS
from vitreous.layers.plain import is_plain


class ConvNorm(nn.Module):
    """Convolution and batch norm; outside training the norm is folded into the kernel."""

    chain = True  # its convolutions follow one another

    def __init__(
        self, in_dim: int, dim: int, kernel_size: int = 3, stride: int = 1, *, groups: int = 1, bias: bool = False
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_dim, dim, kernel_size, stride, kernel_size // 2, groups=groups, bias=bias)
        self.norm = nn.BatchNorm2d(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2)
        fixed = not self.norm.training and self.norm.running_mean is not None
        y = self.folded(x) if fixed and is_plain(self.conv, self.norm) else self.norm(self.conv(x))
        return y.permute(0, 2, 3, 1)

    def folded(self, x: Tensor) -> Tensor:
        conv, norm = self.conv, self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        mean = norm.running_mean if conv.bias is None else norm.running_mean - conv.bias
        weight, shift = conv.weight * scale[:, None, None, None], norm.bias - mean * scale
        if conv.kernel_size == (1, 1) and conv.stride == (1, 1) and conv.groups == 1:
            return product(x.permute(0, 2, 3, 1), weight.flatten(1), shift).permute(0, 3, 1, 2)
        return F.conv2d(x, weight, shift, conv.stride, conv.padding, groups=conv.groups)


class ConvStem(nn.Module):
    """Three 3x3 convolutions with GELU in between; the first and the last may have stride 2."""

    chain = True  # its convolutions follow one another

    def __init__(self, in_dim: int, dim: int, *, stride: int, depthwise: bool) -> None:
        super().__init__()
        first, last = HALVINGS[stride]
        half = dim // 2
        self.conv1 = ConvNorm(in_dim, half, stride=first)
        self.conv2 = ConvNorm(half, half, groups=half if depthwise else 1)
        self.conv3 = ConvNorm(half, dim, stride=last)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv3(F.gelu(self.conv2(F.gelu(self.conv1(x)))))


class Projection(nn.Module):
    """The wide layer between a trunk and its classifier: 1x1 convolution, batch norm, SiLU on (B, C, H, W)."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.widen = ConvNorm(dim, width, 1, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.widen(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class PositionConv(nn.Conv2d):
    """Depth-wise 3x3 convolution of maps (B, C, H, W), added to its input."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim, 3, padding=1, groups=dim)

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, with_shortcut(self.weight), self.bias)


def with_shortcut(kernel: Tensor) -> Tensor:
    """Depth-wise 3x3 kernels whose convolution also adds its input: a one is added to their centres.

    The constant is made on demand. A buffer would be lost when a model is made on the meta device and filled from a
    file, which holds no constants.
    """
    centre = kernel.new_zeros(9)
    centre[4] = 1
    return kernel + centre.view(3, 3)
