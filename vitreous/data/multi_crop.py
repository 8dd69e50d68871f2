"""Several random crops of a picture, large and small, each changed in its own way: what a picture is shown as to DINO.

Caron et al. 2021, arXiv 2104.14294: two global crops, which show most of the picture, and local ones, which show little
of it. All randomness comes from the global generators, which the loader sets per sample.

Legend: B pictures, V views of each.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from vitreous.data.image_set import ImageSet
from vitreous.data.transforms import Preprocess, random_box, require_probability, resampling, to_bytes
from vitreous.errors import InputError

JITTER, SOLARISE = 0.8, 0.2  # probabilities
BLURRED = (1.0, 0.1, 0.5)  # of the first global crop, the second, and local ones
BLUR_RADIUS, BLUR_SIDE = (0.1, 2.0), 224  # in pixels of crops of that side; others are blurred in proportion
RATIO = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class MultiCrop:
    """Random views of a picture: the global crops, then the local ones."""

    preprocess: Preprocess  # of global crops
    local_crops: int
    local_size: int
    global_scale: tuple[float, float]  # smallest and largest share of a picture's area
    local_scale: tuple[float, float]
    color_jitter: float
    flip: float = 0.5
    grey: float = 0.2  # probability
    recolour: float = 0.0  # probability

    def __post_init__(self) -> None:
        require_probability("flip", self.flip)
        require_probability("grey", self.grey)
        require_probability("recolour", self.recolour)
        for name in ("global_scale", "local_scale"):
            low, high = getattr(self, name)
            if not 0 < low <= high <= 1:
                raise InputError(f"{name} {low} {high} cannot be used; give two rising shares of a picture's area")

    @property
    def at_least(self) -> int:
        """How many pixels a picture's shorter side needs so that no crop has to be enlarged."""
        kinds = [(self.preprocess.size[0], self.global_scale[0])]
        kinds += [(self.local_size, self.local_scale[0])] if self.local_crops else []
        return max(math.ceil(side / math.sqrt(scale * RATIO[0])) for side, scale in kinds)

    def __call__(self, image: Image.Image) -> list[Tensor]:
        """V crops (3, H, W) of bytes."""
        rgb = image if image.mode == "RGB" else image.convert("RGB")
        side = self.preprocess.size[0]
        views = [self.crop(rgb, side, self.global_scale, BLURRED[place], place * SOLARISE) for place in (0, 1)]
        return views + [
            self.crop(rgb, self.local_size, self.local_scale, BLURRED[2], 0.0) for _ in range(self.local_crops)
        ]

    def crop(self, image: Image.Image, side: int, scale: tuple[float, float], blur: float, solarise: float) -> Tensor:
        chance = random.random  # (not a secret)
        box = random_box(image, scale, RATIO)
        view = image.resize((side, side), resampling(self.preprocess.interpolation), box=box)
        if chance() < self.flip:
            view = ImageOps.mirror(view)
        if self.color_jitter and chance() < JITTER:
            view = self._jitter(view)
        if self.recolour and chance() < self.recolour:
            view = recoloured(view)
        if chance() < self.grey:
            view = ImageOps.grayscale(view).convert("RGB")
        if chance() < blur:
            radius = random.uniform(*BLUR_RADIUS) * self.preprocess.size[0] / BLUR_SIDE  # noqa: S311
            view = view.filter(ImageFilter.GaussianBlur(radius))
        if self.color_jitter and chance() < solarise:
            view = ImageOps.solarize(view)
        return to_bytes(view)

    @cached_property
    def _jitter(self) -> Any:
        from torchvision.transforms import ColorJitter

        strength = self.color_jitter
        return ColorJitter(strength, strength, strength / 2, strength / 4)

    def __getstate__(self) -> dict[str, Any]:
        """Settings only: a spawned worker makes its own jitter."""
        return {name: value for name, value in self.__dict__.items() if name != "_jitter"}


def recoloured(image: Image.Image) -> Image.Image:
    """With its channels in a random order, and its distance from grey between nothing and twice what it was.

    Unlike stronger jitter it makes no view nearly black or white, in which nothing is left to be seen.
    """
    channels = list(image.split())
    random.shuffle(channels)
    return ImageEnhance.Color(Image.merge("RGB", channels)).enhance(random.uniform(0, 2))  # noqa: S311


class UnlabelledViews:
    """Pictures of an image set, seen through a view. Labels, where they are known, are for measuring alone."""

    def __init__(self, images: ImageSet, view: Any) -> None:
        self.images, self.view = images, view
        self.at_least = getattr(view, "at_least", None)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, dict[str, Any]]:
        picture = self.images.picture(index, at_least=self.at_least)
        learning = isinstance(self.view, MultiCrop)
        return self.view(picture), {} if learning else {"labels": self.images.target(index).get("labels", -1)}


def stack_views(samples: Sequence[tuple[list[Tensor], dict[str, Any]]]) -> tuple[list[Tensor], dict[str, Any]]:
    """Crops of equal size in one tensor (V B, 3, H, W), view after view; the global ones are in the first."""
    sizes: dict[tuple[int, ...], list[Tensor]] = {}
    for view in zip(*(crops for crops, _ in samples), strict=True):
        sizes.setdefault(view[0].shape, []).extend(view)
    return [torch.stack(crops) for crops in sizes.values()], {}
