"""Views of a picture together with its targets: for detection, segmentation and keypoints.

A view is called with a picture and its target as an `ImageSet` gives them, and returns the pixels as bytes (3, h, w)
and a dictionary for one sample; `collate_dense` makes a batch of such samples. All randomness comes from the global
generators, which the loader sets per sample.

Legend: B batch, H W of the padded batch or of a picture, h w of one view, n objects, K keypoints.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.annotations import Objects, require_room
from vitreous.data.coco_masks import CocoSegmentation
from vitreous.data.image import ImageError
from vitreous.data.image_set import ImageSet
from vitreous.data.layouts.mask_classes import IGNORE
from vitreous.data.transforms import Preprocess, resampling, to_bytes
from vitreous.errors import InputError
from vitreous.files.limits import MAX_CORNER_PIXELS

SIDE_MULTIPLE = 32  # of a batch: every stride of a pyramid divides it
FIRST_SHORT = (400, 500, 600)  # shorter side before a crop, as in DETR's augmentation
THINNEST_BOX_PIXELS = 1.0  # what a crop leaves of an object counts as an object from here on
MOST_OF_ONE_CLASS = 0.75  # share of a crop
CROP_TRIES = 10


class JointViews:
    """Samples for a loader: pictures of a set seen through a joint view."""

    def __init__(self, images: ImageSet, view: Callable[[Image.Image, dict[str, Any]], Any]) -> None:
        self.images, self.view = images, view

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Any]]:
        picture, target = self.images.picture(index), self.images.target(index)
        try:
            return self.view(picture, target)
        except ImageError as error:
            raise ImageError(f"image {self.images.name(index)!r} cannot be used: {error}") from error


@dataclass(frozen=True)
class Window:
    """A part of a picture, brought to another size and perhaps mirrored, with everything that lies in it.

    Pixel i covers i to i + 1 in all coordinates, so that a box, a mask, a keypoint and the pixels themselves stay
    together at any scale.
    """

    box: tuple[float, float, float, float]  # left, top, right, bottom in the picture
    size: tuple[int, int]  # (h, w) of the result
    mirrored: bool = False

    @property
    def scale(self) -> tuple[float, float]:
        """Across and down."""
        left, top, right, bottom = self.box
        return self.size[1] / (right - left), self.size[0] / (bottom - top)

    def pixels(self, picture: Image.Image, interpolation: str) -> Tensor:
        """(3, h, w) bytes."""
        found = to_bytes(self._cut(picture, resampling(interpolation)))
        return found.flip(-1) if self.mirrored else found

    def values(self, labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """(H, W) of class numbers to (h, w), none of them blended."""
        found = np.asarray(self._cut(Image.fromarray(labels), Image.Resampling.NEAREST))
        return found[:, ::-1] if self.mirrored else found

    def points(self, points: NDArray[np.floating]) -> NDArray[np.float64]:
        """(..., 2) x and y."""
        found = (points - np.array(self.box[:2])) * np.array(self.scale)
        if self.mirrored:
            found[..., 0] = self.size[1] - found[..., 0]
        return found

    def boxes(self, boxes: NDArray[np.floating]) -> NDArray[np.float64]:
        """(n, 4), cut off where the result ends."""
        corners = self.points(boxes.reshape(-1, 2, 2))  # (n, 2, 2)
        if self.mirrored:
            corners[:, :, 0] = corners[:, ::-1, 0]
        return np.clip(corners, 0, np.array(self.size[::-1])).reshape(-1, 4)

    def masks(self, objects: Objects, height: int, width: int) -> NDArray[np.uint8]:
        """(n, h, w); polygons are drawn at their new place, everything else as the pixels go."""
        assert objects.masks is not None
        require_room(len(objects), *self.size)
        found = np.zeros((len(objects), *self.size), np.uint8)
        for place, segmentation in enumerate(objects.masks):
            found[place] = self._mask(objects[[place]], segmentation, height, width)
        return found

    def _mask(self, single: Objects, segmentation: CocoSegmentation, height: int, width: int) -> NDArray[np.uint8]:
        moved = [self.points(np.reshape(polygon, (-1, 2))).ravel() for polygon in segmentation if type(polygon) is list]
        # Enlarged, an outline may go too far to be drawn.
        if isinstance(segmentation, dict) or any(np.abs(polygon).max() >= MAX_CORNER_PIXELS for polygon in moved):
            return self.values(single.decoded_masks(height, width)[0].astype(np.uint8))
        return (
            replace(single, masks=([polygon.tolist() for polygon in moved],))
            .decoded_masks(*self.size)[0]
            .astype(np.uint8)
        )

    def _cut(self, picture: Image.Image, how: Image.Resampling) -> Image.Image:
        height, width = self.size
        left, top, right, bottom = self.box
        # A rounding error beyond the edge is refused by Pillow.
        inside = max(left, 0.0), max(top, 0.0), min(right, float(picture.width)), min(bottom, float(picture.height))
        return picture.resize((width, height), how, box=inside)


def keypoints_in(window: Window, objects: Objects) -> Tensor:
    """(n, K, 3); those that are cut off count as absent; a horizontal flip swaps left and right."""
    assert objects.keypoints is not None
    found = objects.keypoints.astype(np.float32)
    found[..., :2] = window.points(objects.keypoints[..., :2])
    outside = (found[..., :2] < 0).any(-1) | (found[..., :2] >= np.array(window.size[::-1])).any(-1)
    found[outside | (found[..., 2] == 0)] = 0
    return torch.from_numpy(swapped(found, objects) if window.mirrored else found)


def swapped(keypoints: NDArray[np.float32], objects: Objects) -> NDArray[np.float32]:
    """(n, K, ...) with the left ones in the place of the right ones."""
    order = np.arange(keypoints.shape[1])
    for left, right in objects.keypoint_pairs:
        order[left], order[right] = right, left
    return keypoints[:, order]


@dataclass(frozen=True)
class Colours:
    """Random brightness, contrast, saturation and hue; 0.5 gives the ranges of the usual photometric distortion."""

    strength: float

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise InputError(f"jitter {self.strength} cannot be used; it must lie between 0 (off) and 1")

    def __call__(self, pixels: Tensor) -> Tensor:
        return self._change(pixels) if self.strength else pixels

    @cached_property
    def _change(self) -> Callable[[Tensor], Tensor]:
        from torchvision.transforms.v2 import ColorJitter

        return ColorJitter(self.strength / 4, self.strength, self.strength, self.strength / 10)


@dataclass(frozen=True)
class DetectView:
    """The whole picture, or in training a random part of it, at the size at which a detector sees it.

    Args:
        short: Shorter side of the view; of several one is drawn in training, the largest taken otherwise.
        longest: The longer side does not exceed it.
        crop: (least, most) sides of a random part that half of the training pictures are cut to, after their shorter
            side has been brought to 400, 500 or 600 pixels.
        jitter: Strength of random colours, 0 to 1.
        scale: (least, most) factor by which training pictures are enlarged; what then exceeds their usual size is cut
            off at random.
        masks: Whether masks are decoded, where there are any.
    """

    preprocess: Preprocess
    short: tuple[int, ...] = (800,)
    longest: int = 1333
    flip: float = 0.5
    crop: tuple[int, int] | None = None
    jitter: float = 0.0
    scale: tuple[float, float] = (1.0, 1.0)
    train: bool = True
    masks: bool = True
    _colours: Colours = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.short or min(self.short) < 1 or self.longest < max(self.short):
            raise InputError(
                f"sides {self.short} with a longest of {self.longest} cannot be used; "
                "give at least one shorter side, none of them above the longest"
            )
        _check_chance("flip", self.flip)
        _check_range("scale", self.scale)
        if self.crop is not None:
            _check_range("crop", self.crop)
        object.__setattr__(self, "_colours", Colours(self.jitter))

    def __call__(self, picture: Image.Image, target: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        window = self._random_window(picture) if self.train else self._whole(picture, max(self.short))
        pixels = window.pixels(picture, self.preprocess.interpolation)
        objects = target["objects"]
        boxes = window.boxes(objects.boxes)
        least = THINNEST_BOX_PIXELS if self.train else 0.0
        kept = objects.usable(picture.height, picture.width) & (boxes[:, 2:] - boxes[:, :2] > least).all(1)
        seen, (across, down) = objects[kept], window.scale
        found: dict[str, Any] = {
            "size": torch.tensor(window.size),
            "original_size": torch.tensor((picture.height, picture.width)),
            "image_id": torch.tensor(target["image_id"]),
            "boxes": torch.from_numpy(boxes[kept].astype(np.float32)),
            "labels": torch.from_numpy(seen.labels),
            "crowd": torch.from_numpy(seen.crowd),
            "area": torch.from_numpy((seen.area * across * down).astype(np.float32)),
        }
        if self.masks and seen.masks is not None:
            found["masks"] = torch.from_numpy(window.masks(seen, picture.height, picture.width))
        if seen.keypoints is not None:
            found["keypoints"] = keypoints_in(window, seen)
        if self.train:
            return self._colours(pixels), found
        if self.masks:
            objects = objects.with_short_outlines(picture.height, picture.width)
        return pixels, {**found, "objects": objects}  # as they are, for a metric in pixels of the picture

    def _whole(self, picture: Image.Image, short: int, mirrored: bool = False) -> Window:
        box = (0.0, 0.0, float(picture.width), float(picture.height))
        return Window(box, fitted_size(picture.height, picture.width, short, self.longest), mirrored)

    def _random_window(self, picture: Image.Image) -> Window:
        mirrored, short = random.random() < self.flip, random.choice(self.short)  # noqa: S311  (not secrets)
        box = (0.0, 0.0, float(picture.width), float(picture.height))
        if self.crop is not None and random.random() < 0.5:  # noqa: S311
            box = _random_part(picture, self.crop)
        height, width = fitted_size(box[3] - box[1], box[2] - box[0], short, self.longest)
        factor = math.exp(random.uniform(*map(math.log, self.scale)))  # noqa: S311
        if factor == 1:
            return Window(box, (height, width), mirrored)
        if factor < 1:
            return Window(box, (max(1, round(height * factor)), max(1, round(width * factor))), mirrored)
        return Window(_inner(box, 1 / factor), (height, width), mirrored)


@dataclass(frozen=True)
class SegmentView:
    """In training a random part of the picture at a random scale, of exactly `crop`; otherwise the whole picture.

    The picture is scaled to a shorter side of `short` (and a longer one of four times that at most), in training times
    a factor in `ratio`. Of up to ten parts the first is taken in which no class covers more than three quarters.
    """

    preprocess: Preprocess
    crop: tuple[int, int] = (512, 512)
    ratio: tuple[float, float] = (0.5, 2.0)
    flip: float = 0.5
    jitter: float = 0.5
    train: bool = True
    short: int | None = None  # the smaller side of `crop` if not given
    _colours: Colours = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.crop) != 2 or min(self.crop) < 1:
            raise InputError(f"crop {self.crop} cannot be used; give height and width in pixels")
        _check_range("ratio", self.ratio)
        _check_chance("flip", self.flip)
        object.__setattr__(self, "_colours", Colours(self.jitter))

    def __call__(self, picture: Image.Image, target: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        semantic = target["semantic"]
        short = min(self.crop) if self.short is None else self.short
        size = fitted_size(picture.height, picture.width, short, 4 * short)
        original = torch.tensor((picture.height, picture.width))
        how = self.preprocess.interpolation
        if not self.train:
            window = Window((0.0, 0.0, float(picture.width), float(picture.height)), size)
            return window.pixels(picture, how), {
                "semantic": _class_numbers(window.values(semantic)),
                "size": torch.tensor(size),
                "original_size": original,
                "original_semantic": torch.from_numpy(semantic.copy()),
            }
        window = self._random_window(picture, size, semantic)
        pixels = self._colours(window.pixels(picture, how))
        labels = _class_numbers(window.values(semantic))
        return _padded(pixels, self.crop, 0), {
            "semantic": _padded(labels, self.crop, IGNORE),
            "size": torch.tensor(window.size),
            "original_size": original,
        }

    def _random_window(self, picture: Image.Image, size: tuple[int, int], semantic: NDArray[np.uint8]) -> Window:
        factor, mirrored = random.uniform(*self.ratio), random.random() < self.flip  # noqa: S311  (not secrets)
        height, width = (max(1, round(side * factor)) for side in size)
        part = min(height, self.crop[0]), min(width, self.crop[1])
        across, down = picture.width / width, picture.height / height
        for _ in range(CROP_TRIES):
            top, left = random.randint(0, height - part[0]), random.randint(0, width - part[1])  # noqa: S311
            box = (left * across, top * down, (left + part[1]) * across, (top + part[0]) * down)
            window = Window(box, part, mirrored)
            counts = np.bincount(window.values(semantic).ravel(), minlength=IGNORE + 1)[:IGNORE]
            if np.count_nonzero(counts) > 1 and counts.max() < MOST_OF_ONE_CLASS * counts.sum():
                break
        return window


# ---- batches ---------------------------------------------------------------------------------------------------

_BATCHED_NAMES = {
    "size": "sizes",
    "original_size": "original_sizes",
    "image_id": "image_ids",
    "id": "ids",
    "box_score": "box_scores",
}


def collate_dense(samples: list[tuple[Tensor, dict[str, Any]]]) -> tuple[Tensor, dict[str, Any]]:
    """One batch: pictures are padded at the right and the bottom to a common size, a multiple of 32.

    Values per picture are stacked; values per object become a list with an entry for each picture. Masks are padded
    with 0, class numbers with `IGNORE`.
    """
    if "heatmaps" in samples[0][1]:  # views of equal size with one object each
        return torch.stack([pixels for pixels, _ in samples]), {
            _BATCHED_NAMES.get(key, key): _together([target[key] for _, target in samples]) for key in samples[0][1]
        }
    tallest, widest = (max(pixels.shape[axis] for pixels, _ in samples) for axis in (1, 2))
    size = -(-tallest // SIDE_MULTIPLE) * SIDE_MULTIPLE, -(-widest // SIDE_MULTIPLE) * SIDE_MULTIPLE
    targets: dict[str, Any] = {}
    for key in samples[0][1]:
        values = [target[key] for _, target in samples]
        if key in _BATCHED_NAMES:
            targets[_BATCHED_NAMES[key]] = torch.stack(values)
        elif key == "semantic":
            targets[key] = torch.stack([_padded(value, size, IGNORE) for value in values])
        else:
            targets[key] = [_padded(value, size, 0) for value in values] if key == "masks" else values
    return torch.stack([_padded(pixels, size, 0) for pixels, _ in samples]), targets


def _together(values: list[Any]) -> Any:
    """Tensors stacked, numbers as one tensor; what is neither stays a list."""
    if isinstance(values[0], Tensor):
        return torch.stack(values)
    return torch.tensor(values) if isinstance(values[0], float) else values


def _padded(values: Tensor, size: tuple[int, int], filling: int) -> Tensor:
    """(..., h, w) to (..., H, W)."""
    if values.shape[-2:] == size:
        return values
    framed = values.new_full((*values.shape[:-2], *size), filling)
    framed[..., : values.shape[-2], : values.shape[-1]] = values
    return framed


# ---- geometry --------------------------------------------------------------------------------------------------


def fitted_size(height: float, width: float, short: int, longest: int) -> tuple[int, int]:
    """(h, w) with a shorter side of `short`, or less if the longer one would exceed `longest`."""
    factor = min(short / min(height, width), longest / max(height, width))
    return max(1, round(height * factor)), max(1, round(width * factor))


def _random_part(picture: Image.Image, sides: tuple[int, int]) -> tuple[float, float, float, float]:
    """Of the picture scaled to a smaller size, a part with random sides; in pixels of the picture itself."""
    factor = random.choice(FIRST_SHORT) / min(picture.size)  # noqa: S311  (not a secret)
    width, height = (
        random.randint(min(sides[0], round(side * factor)), min(sides[1], round(side * factor))) / factor  # noqa: S311
        for side in picture.size
    )
    width, height = min(width, picture.width), min(height, picture.height)
    left, top = random.uniform(0, picture.width - width), random.uniform(0, picture.height - height)  # noqa: S311
    return left, top, left + width, top + height


def _inner(box: tuple[float, float, float, float], share: float) -> tuple[float, float, float, float]:
    """A random part with `share` of each side."""
    left, top, right, bottom = box
    width, height = (right - left) * share, (bottom - top) * share
    left, top = random.uniform(left, right - width), random.uniform(top, bottom - height)  # noqa: S311
    return left, top, left + width, top + height


def _class_numbers(labels: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))


def _check_chance(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InputError(f"{name} {value} is a probability; it must lie between 0 and 1")


def _check_range(name: str, ends: tuple[float, float]) -> None:
    if len(ends) != 2 or not 0 < ends[0] <= ends[1]:
        raise InputError(f"{name} {ends} cannot be used; give the least and the most, both above 0")
