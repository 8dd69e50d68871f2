"""Noisy linear imputation: hidden pixels as weighted means of their neighbours, so that a hole does not show its shape.

Rong et al., "A Consistent and Efficient Evaluation Strategy for Attribution Methods" (ROAD), arXiv 2202.00449. Each
hidden pixel equals the mean of its eight neighbours, direct ones counting twice; neighbours that are hidden too make it
a system of linear equations, which is symmetric and solved here by conjugate gradients on all images at once.

Shapes: R changed copies of images, C channels, height and width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

IMPUTATION_NOISE = 0.01  # standard deviation, in normalised units: smooth colours alone would tell where the hole is
PRECISION = 1e-3  # of the solution: the residual, relative to that of the start; a tenth of the noise or so
MOST_ROUNDS = 500
SMALLEST_RESIDUAL = 1e-6  # a residual so small beside the image is rounding, and following it leads nowhere


def impute(images: Tensor, keep: Tensor, *, noise: float = IMPUTATION_NOISE, precision: float = PRECISION) -> Tensor:
    """`images` (R, C, height, width) where `keep` (R, 1, height, width) is 1, the solution with noise where it is 0.

    A copy that keeps nothing becomes the mean colour of its image, which no neighbour could tell.
    """
    known = keep.float()
    hidden = 1 - known
    mean = torch.where(known > 0, images.float(), images.float().mean((2, 3), keepdim=True))
    weight = neighbours(torch.ones_like(known))  # less at the border of the image
    found = close_holes(mean, known)
    residual = hidden * (neighbours(found) - weight * found)
    direction, size = residual.clone(), squared(residual)
    scale = squared(hidden * (neighbours(mean) - weight * mean))
    enough = (scale * precision**2).maximum(squared(mean) * SMALLEST_RESIDUAL**2)
    for _ in range(MOST_ROUNDS):
        going = size > enough
        if not bool(going.any()):
            break
        change = hidden * (weight * direction - neighbours(direction))
        step = torch.where(going, size / along(direction, change).clamp_min(1e-30), 0)  # whatever others still need
        found, residual = found + step * direction, residual - step * change
        size, before = squared(residual), size
        direction = residual + size / before.clamp_min(1e-30) * direction
    random = torch.randn(images.shape[1:], generator=torch.Generator().manual_seed(0)).to(found)
    return (found + noise * hidden * random).to(images.dtype)


def close_holes(pixels: Tensor, known: Tensor) -> Tensor:
    """A good start: hidden pixels from the same image at half its size, whose holes are closed in the same way.

    Pixels that are hidden count where no other is near, in the smallest image.
    """
    if min(pixels.shape[2:]) < 2 or bool((known > 0).all()):
        return pixels
    share = F.avg_pool2d(known, 2, ceil_mode=True)
    smaller = F.avg_pool2d(pixels * known, 2, ceil_mode=True) / share.clamp_min(1e-12)
    smaller = torch.where(share > 0, smaller, F.avg_pool2d(pixels, 2, ceil_mode=True))
    closed = F.interpolate(
        close_holes(smaller, (share > 0).float()), pixels.shape[2:], mode="bilinear", align_corners=False
    )
    return torch.where(known > 0, pixels, closed)


def neighbours(maps: Tensor) -> Tensor:
    """The weighted sum of the eight neighbours of every pixel, those outside of the image being 0.

    Direct ones weigh 1/6 and the others 1/12: a third of the means along both axes with weights 1, 2, 1, without the
    pixel itself. Sums of slices are several times faster than a convolution of single channels.
    """
    rows = F.pad(maps, (0, 0, 1, 1))
    down = rows[:, :, :-2] + rows[:, :, 2:] + 2 * maps
    columns = F.pad(down, (1, 1))
    return (columns[..., :-2] + columns[..., 2:] + 2 * down) / 12 - maps / 3


def squared(maps: Tensor) -> Tensor:
    return along(maps, maps)


def along(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of each channel of each copy, (R, C, 1, 1): every one is a system of its own."""
    return (a * b).sum((2, 3), keepdim=True)
