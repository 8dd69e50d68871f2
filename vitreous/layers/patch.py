"""From image to tokens and from one stage's tokens to the next: convolution(s), then LayerNorm over channels.

Input and output are (B, H, W, C); the convolutions see channels-last views of them.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

HALVINGS = {4: (2, 2), 2: (2, 1), 1: (1, 1)}  # a stem's stride -> the strides of its first and last convolution


def apply_nchw(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer for maps (B, C, H, W), applied to tokens (B, H, W, C), which are channels-last maps."""
    return layer(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)  # two views: nothing is copied


class PatchEmbed(nn.Module):
    """One convolution whose stride makes the patches, overlapping when the kernel is larger, then LayerNorm."""

    chain = True  # its convolutions follow one another

    def __init__(self, in_dim: int, dim: int, *, kernel_size: int, stride: int, eps: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_dim, dim, kernel_size, stride, kernel_size // 2)
        self.norm = nn.LayerNorm(dim, eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(apply_nchw(self.conv, x))


class DoubleConvStem(nn.Module):
    """Two 3x3 convolutions with nothing in between, then LayerNorm; each may have stride 2."""

    chain = True  # its convolutions follow one another

    def __init__(self, in_dim: int, dim: int, *, stride: int, eps: float) -> None:
        super().__init__()
        first, second = HALVINGS[stride]
        self.conv1 = nn.Conv2d(in_dim, dim // 2, 3, first, 1)
        self.conv2 = nn.Conv2d(dim // 2, dim, 3, second, 1)
        self.norm = nn.LayerNorm(dim, eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(apply_nchw(self.conv2, apply_nchw(self.conv1, x)))


def resize(x: Tensor, size: Sequence[int]) -> Tensor:
    """Bilinear resize of a (B, C, H, W) map with half-pixel centres, as all our pyramids use it."""
    return F.interpolate(x, list(size), mode="bilinear", align_corners=False)
