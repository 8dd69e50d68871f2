"""What stands where a part of an image is hidden.

Inputs are normalised, so 0 is the mean colour of the training data. Hiding before normalisation (black) is the same as
hiding after it with black's normalised value, given as a tensor: normalising is affine.
"""

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import InputError

Fill = Literal["mean", "blur", "noise", "colour"]
NEVER_TAUGHT: tuple[Fill, ...] = ("noise", "colour")  # what no explainer learns with, so that it can be judged by them
# Standard deviation of the blur, in sides of the image: so wide that shapes vanish and the light of the scene stays.
# Half as wide, a classifier of shapes still named 57 % of them; with this 13 %, where 10 % are luck.
BLUR = 1 / 6


def baseline(images: Tensor, fill: Fill | Tensor) -> Tensor:
    """Images (B, C, H, W) with everything hidden. A tensor, such as black's normalised value, must broadcast.

    "noise" is the image's own pixels in random order, "colour" the colour of one of them.
    """
    if isinstance(fill, Tensor):
        return fill.to(images).expand_as(images)
    if fill == "mean":
        return torch.zeros_like(images)
    if fill == "blur":
        return blurred(images, BLUR * min(images.shape[-2:]))
    if fill in NEVER_TAUGHT:
        places = torch.randperm(images.shape[2] * images.shape[3], generator=torch.Generator().manual_seed(0))
        pixels = images.flatten(2)[:, :, (places if fill == "noise" else places[:1]).to(images.device)]
        return pixels.view_as(images) if fill == "noise" else pixels[..., None].expand_as(images)
    raise InputError(
        f"fill={fill!r} given; accepted: {', '.join(map(repr, get_args(Fill)))}, or a tensor such as black's "
        "normalised value"
    )


def blend(images: Tensor, keep: Tensor, hidden: Tensor) -> Tensor:
    """`images` where `keep` is 1, `hidden` where it is 0."""
    return torch.lerp(hidden, images, keep)


def blurred(pictures: Tensor, deviation: float) -> Tensor:
    """Gaussian blur of the last two axes of (B, C, H, W); the border repeats outwards."""
    if deviation <= 0:
        return pictures
    radius = max(1, math.ceil(2.5 * deviation))
    line = torch.arange(-radius, radius + 1, device=pictures.device, dtype=pictures.dtype)
    kernel = (-0.5 * (line / deviation) ** 2).exp()
    kernel = kernel / kernel.sum()
    B, C, H, W = pictures.shape
    flat = pictures.reshape(B * C, 1, H, W)
    down = F.conv2d(F.pad(flat, (0, 0, radius, radius), mode="replicate"), kernel[None, None, :, None])
    across = F.conv2d(F.pad(down, (radius, radius, 0, 0), mode="replicate"), kernel[None, None, None])
    return across.view(B, C, H, W)
