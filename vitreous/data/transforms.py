"""From a decoded picture to the tensor a model sees, at evaluation and in training.

`Preprocess` is the part a trained model carries with it. `Augmentation` draws a random view of the same picture;
all its randomness comes from Python's, NumPy's and torch's global generators, which the loader sets per sample.

Loaders carry pixels as bytes, a quarter of the memory, and `Preprocess.normalise_bytes` makes a batch of them ready
where the model is. Evaluation scales with Pillow. Training scales with torch, which is three times as fast and differs
by one grey level at most, and takes large JPEGs reduced from the decoder as far as the smallest crop allows.
"""

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor

from vitreous.data.regions import Region, painted_over, regions_from
from vitreous.errors import InputError, nearest

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

RAND_AUGMENT = re.compile(r"rand(-((m|n|mmax)\d{1,3}|(p|mstd)\d{1,3}(\.\d+)?|inc[01]|tweights))*")

LARGEST_SIDE = 8192  # pixels; one RGB picture of that size takes 800 MB as a tensor

SIDES_FORM = re.compile(r"(\d{1,5})(?:x(\d{1,5}))?")

ChannelValues = tuple[float, float, float]
ImageSize = int | str  # one side for both, or height and width as 4000x6000


def read_size(given: ImageSize) -> int | tuple[int, int]:
    """224, or height and width of 800x1216."""
    form = SIDES_FORM.fullmatch(str(given))
    if form is None:
        raise InputError(f"--size {given} cannot be read; give pixels (224), or height and width (800x1216)")
    return int(form[1]) if form[2] is None else (int(form[1]), int(form[2]))


@dataclass(frozen=True)
class Preprocess:
    """What happens to an image before a model at evaluation time.

    The image is scaled until it covers `size / crop_ratio`, its centre is cut to `size`, and the channels are
    shifted and scaled by `mean` and `std`. With `squash`, it is scaled to exactly that, whatever its
    proportions.
    """

    size: tuple[int, int]  # (H, W)
    crop_ratio: float = 1.0
    interpolation: str = "bicubic"
    mean: ChannelValues = IMAGENET_MEAN
    std: ChannelValues = IMAGENET_STD
    squash: bool = False
    hidden: tuple[Region, ...] = ()  # painted over in every picture: what a mended model does not see

    def __post_init__(self) -> None:
        if len(self.size) != 2 or not all(isinstance(side, int) and 1 <= side <= LARGEST_SIDE for side in self.size):
            raise InputError(
                f"image size {self.size} cannot be used; height and width are whole numbers from 1 to {LARGEST_SIDE}"
            )
        if not 0 < self.crop_ratio <= 1:
            raise InputError(f"crop ratio {self.crop_ratio} cannot be used; it must be above 0 and at most 1")
        resampling(self.interpolation)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != 3 or not all(math.isfinite(value) for value in values):
                raise InputError(f"{name} {values} cannot be used; give three numbers, one for each colour")
        if min(self.std) <= 0:
            raise InputError(f"std {self.std} cannot be used; colours are divided by it, so it must be above 0")

    def picture(self, image: Image.Image) -> Image.Image:
        """The part of the image that the model sees, at the size at which it sees it."""
        seen = self.part(image)
        return painted_over(seen, self.hidden) if self.hidden else seen

    def part(self, image: Image.Image) -> Image.Image:
        """The same with nothing painted over: of a mask, which tells where things are."""
        # One call with `box` equals resize followed by crop, without drawing what the crop throws away:
        # a 1x20000 picture never becomes a 224x4480000 one.
        return image.resize(self.size[::-1], resampling(self.interpolation), box=self.window(image))

    def window(self, image: Image.Image) -> tuple[float, float, float, float]:
        """Left, top, right, bottom of the part of the image that the model sees, in its pixels."""
        height, width = self.size
        if self.squash:
            left, top = (side * (1 - self.crop_ratio) / 2 for side in image.size)
            return left, top, image.width - left, image.height - top
        covered_height, covered_width = _cover(image.height, image.width, self.size, self.crop_ratio)
        top = round((covered_height - height) / 2)
        left = round((covered_width - width) / 2)
        across, down = image.width / covered_width, image.height / covered_height
        box = (left * across, top * down, (left + width) * across, (top + height) * down)
        return inside(box, image)

    def pixels(self, image: Image.Image) -> Tensor:
        """(3, H, W) bytes of `picture`."""
        return to_bytes(self.picture(image))

    def __call__(self, image: Image.Image) -> Tensor:
        """(3, H, W) normalised float32."""
        return self.normalise_bytes(self.pixels(image))

    def normalise(self, x: Tensor) -> Tensor:
        """(..., 3, H, W) in [0, 1] to what the model expects."""
        return (x - _per_channel(self.mean, x)) / _per_channel(self.std, x)

    def normalise_bytes(self, x: Tensor) -> Tensor:
        """(..., 3, H, W) bytes to what the model expects; what is normalised already passes."""
        if x.dtype != torch.uint8:
            return x
        x = x.to(torch.float32)
        scale = tuple(1 / (255 * std) for std in self.std)
        shift = tuple(-mean / std for mean, std in zip(self.mean, self.std, strict=True))
        return x.mul_(_per_channel(scale, x)).add_(_per_channel(shift, x))

    def denormalise(self, x: Tensor) -> Tensor:
        """The inverse of `normalise`."""
        return x * _per_channel(self.std, x) + _per_channel(self.mean, x)

    def to_dict(self) -> dict[str, Any]:
        """For files; what most models do not need is left out where it is not used."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
        plain["hidden"] = [region.to_dict() for region in self.hidden]
        return {key: value for key, value in plain.items() if key not in ("squash", "hidden") or value}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Preprocess":
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                raise InputError(f"unknown preprocessing key '{key}'; nearest: {nearest(key, known)}")
        plain: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        if "hidden" in plain:
            plain["hidden"] = regions_from({"regions": values["hidden"]})
        return cls(**plain)


@dataclass(frozen=True)
class Augmentation:
    """A random view of a training picture; every part can be switched off."""

    preprocess: Preprocess
    scale: float = 0.08  # smallest share of the picture's area a crop may take; 1 = whole picture, no crop
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    pad: int = 0  # pixels of black put around the whole picture, of which a random part of the old size is then cut
    flip: float = 0.5
    policy: str = ""  # RandAugment in timm's notation, e.g. "rand-m9-mstd0.5-inc1"
    color_jitter: float = 0.0
    erasing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 1:
            raise InputError(f"smallest crop scale {self.scale} cannot be used; it must be above 0 and at most 1")
        for name in ("flip", "erasing"):
            require_probability(name, getattr(self, name))
        if self.color_jitter < 0:
            raise InputError(f"color jitter {self.color_jitter} cannot be used; it must be 0 (off) or more")
        _ = self._steps  # a wrong policy string is reported when training starts, not by a worker

    @property
    def at_least(self) -> int:
        """How many pixels a picture's shorter side needs so that no crop has to be enlarged."""
        return math.ceil(max(self.preprocess.size) / math.sqrt(self.scale * min(self.ratio[0], 1 / self.ratio[1])))

    def __call__(self, image: Image.Image) -> Tensor:
        """(3, H, W): bytes, or normalised float32 where something was erased."""
        return self.with_masks(image, ())[0]

    def with_masks(self, image: Image.Image, masks: Sequence[Image.Image]) -> tuple[Tensor, list[Tensor]]:
        """The view, and masks of the picture's size, white on black, cut and mirrored as it is: (H, W) booleans.

        The random numbers are the same with masks and without. A `policy` may turn and move pictures, which masks
        do not follow.
        """
        cut = self.draw_part(image)
        pixels = _scaled(cut(image), self.preprocess.size, self.preprocess.interpolation)
        seen = [_as_mask(cut(mask), self.preprocess.size) for mask in masks]
        if random.random() < self.flip:  # noqa: S311  (not a secret)
            pixels, seen = pixels.flip(-1), [mask.flip(-1) for mask in seen]
        if self._steps:
            picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
            for step in self._steps:
                picture = step(picture)
            pixels = to_bytes(picture)
        if self._erase is not None:
            pixels = self._erase(self.preprocess.normalise_bytes(pixels))
        return pixels, seen

    def draw_part(self, image: Image.Image) -> Callable[[Image.Image], Image.Image]:
        """What cuts a random part out of the picture, and the same part out of a picture of the same size."""
        height, width = self.preprocess.size
        if self.pad:
            left, top = random.randint(0, 2 * self.pad), random.randint(0, 2 * self.pad)  # noqa: S311
            framed = (left, top, left + width, top + height)
            return lambda drawn: ImageOps.expand(self.preprocess.picture(drawn), self.pad).crop(framed)
        if self.scale < 1 or image.height * width != image.width * height:
            box = random_box(image, (self.scale, 1.0), self.ratio)
            return lambda drawn: drawn.crop(box)
        return lambda drawn: drawn

    @cached_property
    def _steps(self) -> tuple[Callable[[Image.Image], Image.Image], ...]:
        steps: list[Callable[[Image.Image], Image.Image]] = []
        if self.policy:
            steps.append(_rand_augment(self.policy, self.preprocess))
        if self.color_jitter:
            from torchvision.transforms import ColorJitter

            steps.append(ColorJitter(self.color_jitter, self.color_jitter, self.color_jitter))
        return tuple(steps)

    @cached_property
    def _erase(self) -> Callable[[Tensor], Tensor] | None:
        if not self.erasing:
            return None
        from timm.data.random_erasing import RandomErasing

        return RandomErasing(self.erasing, mode="pixel", device="cpu")

    def __getstate__(self) -> dict[str, Any]:
        """Settings only: the cached steps hold functions that a spawned worker could not receive."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def require_probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InputError(f"{name} {value} is a probability; it must lie between 0 and 1")


def resampling(name: str) -> Image.Resampling:
    if name not in RESAMPLING:
        raise InputError(f"unknown interpolation '{name}'; accepted: {', '.join(RESAMPLING)}")
    return RESAMPLING[name]


def to_bytes(picture: Image.Image) -> Tensor:
    """(3, H, W) bytes."""
    rgb = picture if picture.mode == "RGB" else picture.convert("RGB")
    # A copy: torch wants memory it may write to.
    return torch.from_numpy(np.array(rgb)).permute(2, 0, 1).contiguous()


def to_unit_tensor(picture: Image.Image) -> Tensor:
    """(3, H, W) float32 in [0, 1]."""
    return to_bytes(picture).to(torch.float32) / 255


def _scaled(picture: Image.Image, size: tuple[int, int], interpolation: str) -> Tensor:
    """(3, H, W) bytes of the whole picture at another size."""
    height, width = size
    if picture.size == (width, height) or interpolation not in ("bilinear", "bicubic"):
        return to_bytes(picture.resize((width, height), resampling(interpolation)))
    # The picture's own memory layout is what torch's fast path for bytes asks for.
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]  # (1, 3, H, W), channels last
    scaled = F.interpolate(pixels, size, mode=interpolation, align_corners=False, antialias=True)
    return scaled[0].contiguous()


def _as_mask(drawn: Image.Image, size: tuple[int, int]) -> Tensor:
    """(H, W) booleans of a picture that is white on black."""
    grey = drawn.convert("L").resize(size[::-1], Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(grey)) >= 128


def _per_channel(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(3, 1, 1)


def _cover(height: int, width: int, size: tuple[int, int], crop_ratio: float) -> tuple[int, int]:
    """The smallest scaled (H, W) of a picture that covers `size / crop_ratio`; rounding as in torchvision."""
    need_height, need_width = (math.floor(side / crop_ratio) for side in size)
    if height * need_width <= width * need_height:  # the height decides
        return need_height, max(need_width, int(need_height * width / height))
    return max(need_height, int(need_width * height / width)), need_width


def inside(box: tuple[float, float, float, float], image: Image.Image) -> tuple[float, float, float, float]:
    """Pillow refuses a box that leaves the image by a rounding error."""
    left, top, right, bottom = box
    return max(left, 0.0), max(top, 0.0), min(right, float(image.width)), min(bottom, float(image.height))


def random_box(image: Image.Image, scale: tuple[float, float], ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """A random part with a share of the area in `scale` and a width/height ratio in `ratio`."""
    area = image.width * image.height
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        share = random.uniform(*scale) * area  # noqa: S311
        aspect = math.exp(random.uniform(low, high))  # noqa: S311
        width, height = round(math.sqrt(share * aspect)), round(math.sqrt(share / aspect))
        if 0 < width <= image.width and 0 < height <= image.height:
            left = random.randint(0, image.width - width)  # noqa: S311
            top = random.randint(0, image.height - height)  # noqa: S311
            return left, top, left + width, top + height
    # Very long pictures rarely offer such a part: take the largest central one of a legal ratio.
    width = min(image.width, max(1, round(image.height * ratio[1])))
    height = min(image.height, max(1, round(image.width / ratio[0])))
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return left, top, left + width, top + height


def _rand_augment(policy: str, preprocess: Preprocess) -> Callable[[Image.Image], Image.Image]:
    from timm.data.auto_augment import rand_augment_transform

    fill = tuple(min(255, round(255 * channel)) for channel in preprocess.mean)
    options = {
        "translate_const": int(min(preprocess.size) * 0.45),
        "img_mean": fill,
        "interpolation": resampling(preprocess.interpolation),
    }
    if not RAND_AUGMENT.fullmatch(policy):  # timm would pass over a section that it cannot read
        raise InputError(
            f"augmentation policy '{policy}' cannot be read; write it as timm does, "
            "e.g. 'rand-m9-mstd0.5-inc1', or leave it empty"
        )
    return rand_augment_transform(policy, options)
