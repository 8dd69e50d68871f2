"""Insertion and deletion: does the model agree with the map?

Petsiuk et al., arXiv 1806.07421. Pixels are taken in the order of the map, most important first. Deletion hides them
one portion after the other in the image; insertion shows them on a hidden image. A map is faithful if the target's
probability falls early and rises early: insertion minus deletion is the area between both curves, 0 for noise.

Everything depends on what hides, so several ways are reported. "blur" leaves the light of the scene and decides. "mean"
cuts sharp edges that the model never saw: hide an object exactly, and the hole has its shape and is recognised by it.
"linear" closes the hole from its rim (`imputation`), so that nothing of its shape is left: the measure is then ROAD's,
the least relevant removed first minus the most relevant removed first.

Shapes: B images, S portions, height and width of the image.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from vitreous.attribution.fill import Fill, baseline, blend
from vitreous.attribution.method import rows_at_once, to_image
from vitreous.attribution.target import Target
from vitreous.errors import InputError
from vitreous.faithfulness.imputation import impute

Hiding = Fill | Literal["linear"]
PORTIONS = 16
IMAGES_AT_ONCE = 64


class Curves(NamedTuple):
    """The target's probability after each portion, none to all: (B, S + 1)."""

    insertion: Tensor
    deletion: Tensor

    @property
    def insertion_area(self) -> Tensor:
        return area(self.insertion)

    @property
    def deletion_area(self) -> Tensor:
        return area(self.deletion)

    @property
    def difference(self) -> Tensor:
        return self.insertion_area - self.deletion_area


def area(curve: Tensor) -> Tensor:
    """Under the curve, over a way of length one, by trapezes: (B,)."""
    return torch.trapezoid(curve, dx=1 / (curve.shape[1] - 1), dim=1)


def place_in_order(heat: Tensor, size: tuple[int, int], seed: int = 0) -> Tensor:
    """Each pixel's place, 0 for the first and below 1 for the last: (B, height, width). Ties fall at random."""
    pixels = to_image(heat, size).flatten(1)
    mixed = torch.randperm(pixels.shape[1], generator=torch.Generator().manual_seed(seed)).to(pixels.device)
    order = mixed[pixels[:, mixed].argsort(dim=1, descending=True, stable=True)]  # (B, N)
    places = torch.arange(pixels.shape[1], device=pixels.device).expand_as(order) / pixels.shape[1]
    return torch.empty_like(places).scatter_(1, order, places).unflatten(1, size)


def curves(
    model: nn.Module,
    images: Tensor,
    heat: Tensor,
    target: Target,
    *,
    fill: Hiding = "blur",
    portions: int = PORTIONS,
    batch_size: int = IMAGES_AT_ONCE,
    ends: "CurveEnds | None" = None,
) -> Curves:
    """Both curves of maps (B, H, W) of any grid, in 2 S passes per image; 2 S - 2 where the ends are known."""
    if portions < 2:
        raise InputError(f"portions={portions} given; a curve has at least 2")
    target, B = target.on("probability"), len(images)
    size = (images.shape[2], images.shape[3])
    place = place_in_order(heat, size)
    hidden, whole, none = ends or curve_ends(model, images, target, fill)
    share = torch.arange(1, portions, device=images.device) / portions
    shown = place[:, None] < share[:, None, None]  # (B, S - 1, height, width)
    keep = torch.cat([shown, ~shown], 1).flatten(0, 1)[:, None]  # all insertions of an image, then all deletions
    image = torch.arange(B).repeat_interleave(2 * (portions - 1))
    rows_each = rows_at_once(images, batch_size)
    with torch.no_grad():
        inner = [
            target.select(rows)(model(changed(images[rows], part.to(images.dtype), hidden[rows], fill)))
            for rows, part in zip(image.split(rows_each), keep.split(rows_each), strict=True)
        ]
    insertion, deletion = torch.cat(inner).view(B, 2, -1).unbind(1)
    return Curves(
        torch.cat([none[:, None], insertion, whole[:, None]], 1),
        torch.cat([whole[:, None], deletion, none[:, None]], 1),
    )


class CurveEnds(NamedTuple):
    """What all curves of some images have in common, whatever the map."""

    hidden: Tensor  # the images with everything hidden
    whole: Tensor  # (B,), the target's probability for the images as they are
    none: Tensor  # (B,), and for the hidden ones


@torch.no_grad()
def curve_ends(
    model: nn.Module, images: Tensor, target: Target, fill: Hiding, *, output: Tensor | None = None
) -> CurveEnds:
    """`output`: the model's for these images, where it is known."""
    # Linear imputation needs a rim: an image of which nothing is left is its mean colour.
    hidden = images.mean((2, 3), keepdim=True).expand_as(images) if fill == "linear" else baseline(images, fill)
    target = target.on("probability")
    return CurveEnds(hidden, target(model(images) if output is None else output), target(model(hidden)))


def changed(images: Tensor, keep: Tensor, hidden: Tensor, fill: Hiding) -> Tensor:
    return impute(images, keep) if fill == "linear" else blend(images, keep, hidden)
