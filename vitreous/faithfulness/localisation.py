"""Does a map lie on the object? Measures for images whose object is known.

They judge the model and the map together: a model may rightly look at the background. Read them beside insertion and
deletion, never instead.

Shapes: B images; maps (B, H, W) of any grid, masks (B, height, width), True on the object.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.attribution.method import to_image
from vitreous.errors import InputError

TOLERANCE = 2  # pixels


def pointing(heat: Tensor, masks: Tensor, tolerance: float = 0) -> Tensor:
    """Whether the highest point lies on the object, or within `tolerance` pixels of it: (B,) of 0 and 1."""
    masks = checked_masks(masks)
    peak = _at_mask_size(heat, masks).flatten(1).argmax(1, keepdim=True)
    return near(masks, tolerance).flatten(1).gather(1, peak)[:, 0].float()


def near(masks: Tensor, distance: float) -> Tensor:
    """Pixels at most so far from the object, centre to centre."""
    if distance <= 0:
        return masks
    reach = int(distance)
    line = torch.arange(-reach, reach + 1, device=masks.device)
    disc = ((line[:, None] ** 2 + line**2) <= distance**2).float()
    return F.conv2d(masks[:, None].float(), disc[None, None], padding=reach)[:, 0] > 0.5


def energy(heat: Tensor, masks: Tensor) -> Tensor:
    """Share of the map's positive values on the object: (B,). An empty map has none there."""
    masks = checked_masks(masks)
    positive = _at_mask_size(heat, masks).clamp_min(0).flatten(1)
    return (positive * masks.flatten(1)).sum(1) / positive.sum(1).clamp_min(1e-12)


def object_iou(heat: Tensor, masks: Tensor) -> Tensor:
    """IoU of the object and as many of the highest pixels as it has: no threshold to choose. (B,)"""
    masks = checked_masks(masks)
    place = _at_mask_size(heat, masks).flatten(1).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    highest = place < masks.flatten(1).sum(1, keepdim=True)
    both, either = highest & masks.flatten(1), highest | masks.flatten(1)
    return both.sum(1) / either.sum(1)


def _at_mask_size(heat: Tensor, masks: Tensor) -> Tensor:
    return to_image(heat, (masks.shape[1], masks.shape[2]))


def checked_masks(masks: Tensor) -> Tensor:
    masks = masks.bool()
    empty = (~masks.flatten(1).any(1)).nonzero().flatten().tolist()
    if empty:
        raise InputError(f"the mask of image {empty[0]} is empty; leave images without an object out")
    return masks
