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
WIDEST_BY_CONVOLUTION = 256  # neighbours on either side; with more, as in images of 24 megapixels, minutes would pass
FAST_SIZE = 512  # Fourier transforms of multiples of it have small prime factors
SHARPNESS = 4.0  # of a soft mask's border, per standard deviation of its map
ROUNDING = 1e-6  # a map that varies by less, beside its largest value, is constant


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
    with torch.autocast(pictures.device.type, enabled=False):  # half precision would not add up to the picture
        if radius > WIDEST_BY_CONVOLUTION:
            each = [wide_sum(wide_sum(one, kernel, 1), kernel, 2) for one in flat]  # one by one, to take less memory
            return torch.stack(each).view(B, C, H, W)
        down = F.conv2d(F.pad(flat, (0, 0, radius, radius), mode="replicate"), kernel[None, None, :, None])
        across = F.conv2d(F.pad(down, (radius, radius, 0, 0), mode="replicate"), kernel[None, None, None])
    return across.view(B, C, H, W)


def wide_sum(picture: Tensor, kernel: Tensor, axis: int) -> Tensor:
    """A picture (1, H, W) weighted by a symmetric kernel along one of its axes, by Fourier transforms."""
    radius, length = len(kernel) // 2, picture.shape[axis]
    size = -(-(length + 2 * radius) // FAST_SIZE) * FAST_SIZE
    edges = (0, 0, radius, radius) if axis == 1 else (radius, radius, 0, 0)
    precise = torch.promote_types(picture.dtype, torch.float32)  # transforms of half precision are for few devices
    spectrum = torch.fft.rfft(F.pad(picture, edges, mode="replicate").to(precise), size, dim=axis)
    factors = torch.fft.rfft(kernel.to(precise), size)
    product = spectrum * (factors[:, None] if axis == 1 else factors)
    return torch.fft.irfft(product, size, dim=axis).narrow(axis, 2 * radius, length).to(picture.dtype)


def standardised(maps: Tensor) -> Tensor:
    """Of mean 0 and deviation 1 over each map (B, ...); a constant one becomes 0."""
    flat = maps.flatten(1)
    spread, mean = torch.std_mean(flat, 1)
    least = (ROUNDING * flat.detach().abs().amax(1)).clamp_min(torch.finfo(flat.dtype).tiny)
    shape = (-1, *[1] * (maps.ndim - 1))
    return (maps - mean.view(shape)) / torch.maximum(spread, least).view(shape)


def soft_mask(heat: Tensor, area: float | Tensor) -> Tensor:
    """Near 1 on about this share of a standardised map (B, H, W), its highest places, and near 0 elsewhere.

    The share may be one for all maps or (B,). No gradient goes through the threshold.
    """
    ordered = heat.detach().flatten(1).sort(1).values
    share = torch.as_tensor(area, device=heat.device).expand(len(heat))
    place = ((1 - share) * ordered.shape[1]).round().long().clamp(1, ordered.shape[1]) - 1
    threshold = ordered.gather(1, place[:, None])[..., None]
    return torch.sigmoid(SHARPNESS * (heat - threshold))
