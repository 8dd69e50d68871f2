"""Where a decision should look, for training: masks of objects and regions, seen through the picture's own random view.

A guide is a mask of places that a decision may rest on. Where the object of a picture is known, these are the object's
(`object`); regions are places that it must not rest on (`away`). A picture about which nothing is known has a guide
that allows everything, and so adds nothing to the loss.

Shapes: B images, H W their sides.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitreous.data.image_set import ImageSet
from vitreous.data.regions import Region, region_masks
from vitreous.data.transforms import Augmentation, Preprocess
from vitreous.errors import InputError, nearest
from vitreous.files.reading import excerpt

OBJECT, AWAY = "guide_object", "guide_away"  # keys of the masks among a sample's targets


@dataclass(frozen=True)
class GuidedView:
    """A random view of a picture and of its guide."""

    view: Augmentation
    objects: bool = False  # whether masks of objects are asked for
    share: float = 1.0  # of these masks that are used
    regions: tuple[Region, ...] = ()

    @property
    def at_least(self) -> int:
        return self.view.at_least

    def __call__(self, picture: Image.Image) -> Tensor:
        """Without a guide, as of any view."""
        return self.view(picture)

    def of(self, images: ImageSet, index: int, picture: Image.Image, label: str) -> tuple[Tensor, dict[str, Any]]:
        """The image, and its guide (H, W): 1 on the object, or everywhere if it is not known; 1 in any of the regions.

        Of the object's mask only what is asked for is decoded. The random numbers are those of a view without a guide.
        """
        known = images.object_mask(index) if self.uses_mask(images, index) else None
        whole = Image.new("L", picture.size, 255)
        drawn = [whole if known is None else known.convert("L").resize(picture.size)]
        if self.regions:
            drawn.append(self.drawn_regions(picture, label))
        pixels, (allowed, *away) = self.view.with_masks(picture, drawn)
        nowhere = torch.zeros_like(allowed)
        # The object may lie outside of a random part of its picture: then nothing is known of what is left.
        allowed = allowed if known is not None and allowed.any() else torch.ones_like(allowed)
        return pixels, {OBJECT: allowed, AWAY: away[0] if away else nowhere}

    def require_classes(self, classes: Sequence[str]) -> None:
        """Refuse a region that counts for no class of the data: it would teach nothing, and nobody would notice."""
        for region in self.regions:
            if region.classes and not set(region.classes) & set(classes):
                given = region.classes[0]
                raise InputError(
                    f"region {region.name!r} counts for {excerpt(given)}, which is no class of the data; nearest: "
                    f"{nearest(given, list(classes), 1)}. Correct its classes, or leave them out to mean all"
                )

    def uses_mask(self, images: ImageSet, index: int) -> bool:
        """Whether the object's mask is asked for; of a share, pictures without a mask are no part."""
        return self.objects and chosen(images.name(index), self.share) and images.has_object_mask(index)

    def drawn_regions(self, picture: Image.Image, label: str) -> Image.Image:
        """The regions as a mask of the whole picture; they are told, and looked for, as a model sees it."""
        preprocess: Preprocess = self.view.preprocess
        seen = region_masks(self.regions, preprocess.pixels(picture)[None], [label])[0]
        mask = Image.fromarray((seen.numpy() * 255).astype(np.uint8))
        left, top, right, bottom = (round(side) for side in preprocess.window(picture))
        whole = Image.new("L", picture.size, 0)
        whole.paste(mask.resize((max(right - left, 1), max(bottom - top, 1))), (left, top))
        return whole


def chosen(name: str, share: float) -> bool:
    """Whether a picture is among a share of all pictures: by its name alone, and among any larger share too."""
    if share >= 1:
        return True
    number = int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:8])
    return number < share * 2**64


def exchange_grounds(images: Tensor, targets: dict[str, Any], share: float, rng: np.random.Generator) -> Tensor:
    """In a share of the images with a guide, what lies off it is taken from another image with a guide of the batch.

    So what lies there says nothing about the class, even to positions on the object that have seen their surroundings.
    Of the other image its own object is painted over in the mean colour of the rest, where it is known: one object is
    left in each image.
    """
    allowed, away = targets[OBJECT], targets[AWAY]  # (B, H, W)
    off = ~allowed | away
    guided = off.flatten(1).any(1).nonzero()[:, 0]
    draws = torch.from_numpy(rng.random(len(images))).to(images.device)  # for all, whatever the guides are
    if len(guided) < 2:
        return images
    others = guided.roll(1)
    known = ~allowed.flatten(1).all(1)
    body = _widened((allowed & known[:, None, None])[others])[:, None]  # (G, 1, H, W), what is painted over
    ground = images[others]
    outside = (~body).sum((2, 3), keepdim=True).clamp_min(1)
    mean = ground.masked_fill(body, 0).sum((2, 3), keepdim=True) / outside
    ground = torch.where(body, mean, ground)
    changed = off[guided][:, None] & (draws[guided] < share)[:, None, None, None]
    result = images.clone()
    result[guided] = torch.where(changed, ground, images[guided])
    return result


def _widened(masks: Tensor) -> Tensor:
    """Masks (B, H, W) with a margin of a 32nd of the side: the outline of an object would still tell what it was."""
    margin = max(1, round(min(masks.shape[1:]) / 32))
    return F.max_pool2d(masks[:, None].float(), 2 * margin + 1, stride=1, padding=margin)[:, 0] > 0
