"""Regions: parts of pictures that a decision should not rest on, as the explorer writes and training reads them.

    {"regions": [{"name": "upper left corner", "box": [0, 0, 0.25, 0.25], "match": "place"},
                 {"name": "sticker", "box": [0.1, 0.1, 0.3, 0.3], "match": "look", "look": "iVB…", "classes": ["cat"]}]}

A box is left, top, right, bottom in shares of the picture as the model sees it. "place": the region is that box in all
pictures. "look": it is wherever the patch `look`, a PNG in base64, is found; the box is where the patch was cut, and
its size in shares is the size that is looked for. `classes` are those that the region was found for: where the class
of a picture is known, it counts for these only.

A patch is found where the normalised cross-correlation of its colours with the picture is at least FOUND: the mean over
pixels and channels is removed, so that light may differ, but colours may not. Where the picture has less than half, or
more than twice, the patch's contrast, it is something else: a tinted plain ground correlates with any plain mark.

Shapes: B pictures, H W their sides, h w the sides of a patch.
"""

import base64
import binascii
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitreous.data.image import load_image
from vitreous.errors import InputError, nearest
from vitreous.files.limits import MAX_CLASS_NAME_CHARS, MAX_LOOK_PIXELS, MAX_REGIONS, MAX_REGIONS_BYTES
from vitreous.files.reading import excerpt, is_text, read_json
from vitreous.files.storage import json_text, replace_file

Box = tuple[float, float, float, float]  # left, top, right, bottom in shares of the picture

# Smallest correlation of a patch that is there. Of random patches of 6 to 24 pixels from shapes, nine in ten keep 0.87
# or more half a pixel further; the best place in a picture that does not hold them reaches 0.85 in one of a hundred.
FOUND = 0.85
CONTRASTS = (0.5, 2.0)  # of the place, relative to the patch's
LEAST_CONTRAST = 0.02  # standard deviation of a patch's colours; below it, any plain ground looks alike
OVERHANG = 1e-3  # by which a box may leave the picture: what is left of rounding
CORNER_SHARE, EDGE_SHARE = 0.25, 0.125  # how far a named corner or edge reaches into the picture

VERTICAL = {"upper": (0.0, CORNER_SHARE), "lower": (1 - CORNER_SHARE, 1.0)}
HORIZONTAL = {"left": (0.0, CORNER_SHARE), "right": (1 - CORNER_SHARE, 1.0)}
CORNERS: dict[str, tuple[Box, ...]] = {
    f"{row} {column}": ((across[0], down[0], across[1], down[1]),)
    for row, down in VERTICAL.items()
    for column, across in HORIZONTAL.items()
}
PLACES = CORNERS | {
    "top edge": ((0.0, 0.0, 1.0, EDGE_SHARE),),
    "bottom edge": ((0.0, 1 - EDGE_SHARE, 1.0, 1.0),),
    "left edge": ((0.0, 0.0, EDGE_SHARE, 1.0),),
    "right edge": ((1 - EDGE_SHARE, 0.0, 1.0, 1.0),),
    "centre": ((0.25, 0.25, 0.75, 0.75),),
}
PLACES["corners"] = tuple(box for boxes in CORNERS.values() for box in boxes)
PLACES["border"] = tuple(box for name in PLACES if name.endswith("edge") for box in PLACES[name])
SYNONYMS = {"top": "upper", "bottom": "lower", "center": "centre", "middle": "centre"}


@dataclass(frozen=True)
class Region:
    """A part of pictures, by its place or by its look."""

    name: str
    box: Box
    match: Literal["place", "look"] = "place"
    classes: tuple[str, ...] = ()  # none named: it counts for all
    look: bytes | None = None  # PNG of what was in the box

    def __post_init__(self) -> None:
        if not is_text(self.name) or not 0 < len(self.name) <= MAX_CLASS_NAME_CHARS:
            raise InputError(
                f"a region is named {excerpt(self.name)}; a name is a text of 1 to {MAX_CLASS_NAME_CHARS} signs"
            )
        object.__setattr__(self, "box", _checked_box(self.name, self.box))
        if self.match not in ("place", "look"):
            raise InputError(f"region {self.name!r}: match {excerpt(self.match)} given; accepted: place, look")
        if not all(is_text(name) for name in self.classes):
            raise InputError(f"region {self.name!r}: classes {excerpt(self.classes)} given; accepted: names of classes")
        if self.match == "look":
            _ = self.patch  # a look that cannot be used is reported now

    @cached_property
    def patch(self) -> Tensor:
        """(3, h, w) in [0, 1]: what a region is recognised by."""
        if self.look is None:
            raise InputError(f"region {self.name!r}: match look needs a look, the part of a picture as a PNG in base64")
        picture = load_image(self.look, name=f"look of region {self.name!r}", max_pixels=MAX_LOOK_PIXELS)
        patch = _pixels_of(picture).float() / 255
        if patch.std(correction=0) < LEAST_CONTRAST:
            raise InputError(
                f"region {self.name!r}: its look is of one colour, which is found on any plain ground; draw the box "
                "a little larger, so that the edge is in it, or use match place"
            )
        return patch

    def counts_for(self, label: str | None) -> bool:
        """Whether the region matters in a picture of this class; None: the class is not known."""
        return label is None or not self.classes or label in self.classes

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {"name": self.name, "box": list(self.box), "match": self.match}
        if self.classes:
            values["classes"] = list(self.classes)
        if self.look is not None:
            values["look"] = base64.b64encode(self.look).decode()
        return values


def region_of_picture(name: str, picture: Image.Image, box: Box, classes: Sequence[str] = ()) -> Region:
    """A region with the look of this part of a picture; the picture is as the model sees it."""
    rows, columns = box_pixels(_checked_box(name, box), picture.height, picture.width)
    cut = picture.crop((columns.start, rows.start, columns.stop, rows.stop))
    stored = io.BytesIO()
    cut.save(stored, "PNG")
    return Region(name, box, "look", tuple(classes), stored.getvalue())


# ---- files and words -------------------------------------------------------------------------------------------


def read_regions(path: str | Path) -> tuple[Region, ...]:
    content = read_json(Path(path), MAX_REGIONS_BYTES)
    try:
        return regions_from(content)
    except InputError as reason:
        raise InputError(f"{path}: {reason}") from reason


def regions_from(content: Any) -> tuple[Region, ...]:
    """What a regions file, or a request, holds."""
    entries = content.get("regions") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise InputError('it names no regions; it must hold {"regions": [{"name": …, "box": […], "match": "place"}]}')
    if len(entries) > MAX_REGIONS:
        raise InputError(f"it has {len(entries)} regions; at most {MAX_REGIONS} are read")
    return tuple(_region(number, entry) for number, entry in enumerate(entries, 1))


def write_regions(path: str | Path, regions: Sequence[Region]) -> None:
    replace_file(Path(path), json_text({"regions": [region.to_dict() for region in regions]}))


def named_regions(words: str) -> tuple[Region, ...]:
    """Regions by the names of their places: "upper left", "lower right corner", "top edge", "border, centre"."""
    found = []
    for part in words.split(","):
        given = " ".join(part.lower().replace("-", " ").split())
        plain = given.removesuffix(" corner")
        spoken = plain if plain in PLACES else " ".join(SYNONYMS.get(word, word) for word in plain.split())
        if spoken not in PLACES:
            raise InputError(
                f"unknown place {excerpt(part.strip())}; accepted: {', '.join(PLACES)}, or the path of a regions file"
            )
        found += [Region(spoken, box) for box in PLACES[spoken]]
    return tuple(found)


def find_regions(given: str) -> tuple[Region, ...]:
    """The regions of a file, or of the places that these words name."""
    path = Path(given).expanduser()
    return read_regions(path) if path.suffix == ".json" or path.is_file() else named_regions(given)


def _region(number: int, entry: Any) -> Region:
    keys = ("name", "box", "match", "classes", "look")
    if not isinstance(entry, dict):
        raise InputError(f"region {number} is {excerpt(entry)}; it must have a name and a box")
    for key in entry:
        if key not in keys:
            raise InputError(f"region {number} has the key {excerpt(key)}; nearest: {nearest(str(key), list(keys), 1)}")
    classes = entry.get("classes") or ()
    if not isinstance(classes, list | tuple):
        raise InputError(f"region {number}: classes {excerpt(classes)} given; accepted: a list of names")
    try:
        look = None if entry.get("look") is None else base64.b64decode(entry["look"], validate=True)
    except (binascii.Error, TypeError, ValueError) as reason:
        raise InputError(f"region {number}: its look is not base64 text; give a PNG in base64") from reason
    name, match = entry.get("name", f"region {number}"), entry.get("match", "place")
    return Region(name, entry.get("box"), match, tuple(classes), look)  # type: ignore[arg-type]


def _checked_box(name: str, box: Any) -> Box:
    accepted = "accepted: left, top, right, bottom, in shares of the picture from 0 to 1"
    numbers = isinstance(box, list | tuple) and all(type(side) in (int, float) for side in box)
    if not numbers or len(box) != 4 or not all(map(math.isfinite, box)):
        raise InputError(f"region {name!r}: box {excerpt(box)} given; {accepted}")
    if min(box) < -OVERHANG or max(box) > 1 + OVERHANG:
        raise InputError(f"region {name!r}: box {excerpt(box)} lies outside the picture; {accepted}")
    left, top, right, bottom = (min(max(float(side), 0.0), 1.0) for side in box)
    if right <= left or bottom <= top:
        raise InputError(f"region {name!r}: box {excerpt(box)} is empty; right must exceed left, and bottom top")
    return left, top, right, bottom


# ---- masks -----------------------------------------------------------------------------------------------------


def region_masks(regions: Sequence[Region], images: Tensor, labels: Sequence[str] | None = None) -> Tensor:
    """(B, H, W), 1 inside any of the regions, of images (B, 3, H, W): bytes, or floats from 0 to 1.

    `labels` are the names of the pictures' classes, where they are known.
    """
    B, _, H, W = images.shape
    masks = torch.zeros(B, H, W, device=images.device)
    for region in regions:
        names = [None] * B if labels is None else list(labels)
        places = [place for place in range(B) if region.counts_for(names[place])]
        if not places:
            continue
        if region.match == "place":
            rows, columns = box_pixels(region.box, H, W)
            masks[places, rows, columns] = 1
        else:
            masks[places] = torch.maximum(masks[places], _found(region, images[places]))
    return masks


def box_pixels(box: Box, H: int, W: int) -> tuple[slice, slice]:
    """Rows and columns that a box touches by half or more, and at least one of each."""
    left, top, right, bottom = box
    rows, columns = (
        slice(first := min(round(low * side), side - 1), max(round(high * side), first + 1))
        for low, high, side in ((top, bottom, H), (left, right, W))
    )
    return rows, columns


def _pixels_of(picture: Image.Image) -> Tensor:
    """(3, H, W) bytes."""
    return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)


def _found(region: Region, images: Tensor) -> Tensor:
    """(B, H, W): the patch's area wherever it is found."""
    H, W = images.shape[-2:]
    rows, columns = box_pixels(region.box, H, W)
    h, w = rows.stop - rows.start, columns.stop - columns.start
    patch = region.patch.to(images.device)
    if patch.shape[1:] != (h, w):  # cut from a picture of another size
        patch = F.interpolate(patch[None], (h, w), mode="bilinear", antialias=True)[0]
    pixels = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    hits = (correlation(pixels, patch) >= FOUND).float()  # (B, H - h + 1, W - w + 1)
    return F.max_pool2d(F.pad(hits, (w - 1, w - 1, h - 1, h - 1))[:, None], (h, w), stride=1)[:, 0]


def correlation(images: Tensor, patch: Tensor) -> Tensor:
    """Normalised cross-correlation of images (B, 3, H, W) with a patch (3, h, w): (B, H - h + 1, W - w + 1).

    By the Fourier transform, as large patches would take seconds otherwise. 0 where the contrast is another.
    """
    H, W = images.shape[-2:]
    h, w = patch.shape[-2:]
    count = patch.numel()
    centred = patch - patch.mean()
    # The mean is removed from the images too: it changes no correlation, and small numbers keep their digits.
    shifted = (images - images.mean((1, 2, 3), keepdim=True)).double()
    spectrum = torch.fft.rfft2(shifted) * torch.fft.rfft2(centred.double(), s=(H, W)).conj()
    products = torch.fft.irfft2(spectrum.sum(1), s=(H, W))[:, : H - h + 1, : W - w + 1]
    sums, squares = (
        F.avg_pool2d(values.sum(1, keepdim=True), (h, w), stride=1)[:, 0] * (h * w) for values in (shifted, shifted**2)
    )
    variance = (squares - sums**2 / count).clamp_min(0) / count
    deviation, own = variance.sqrt(), float(centred.std(correction=0))
    alike = (deviation >= CONTRASTS[0] * own) & (deviation <= CONTRASTS[1] * own)
    found = products / (count * own * deviation.clamp_min(1e-6))
    return torch.where(alike, found, torch.zeros_like(found)).float()


# ---- painting over ---------------------------------------------------------------------------------------------


def painted_over(picture: Image.Image, regions: Sequence[Region]) -> Image.Image:
    """The picture without what is in the regions: they are filled smoothly from around them.

    A blur of the region would let the colour of a mark through, and one colour would draw a box with edges: a new mark.
    What stands there afterwards depends on nothing in the region.
    """
    pixels = _pixels_of(picture)[None]
    shown = images_painted_over(pixels, regions)
    if shown is pixels:
        return picture
    return Image.fromarray(shown[0].round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy())


def images_painted_over(images: Tensor, regions: Sequence[Region]) -> Tensor:
    """The same of images (B, 3, H, W), bytes or floats from 0 to 1; themselves if the regions are in none of them."""
    masks = region_masks(regions, images)[:, None]  # (B, 1, H, W)
    if not masks.any():
        return images
    return torch.where(masks > 0, _filled(images.float() * (1 - masks), 1 - masks), images.float())


def _filled(weighted: Tensor, weight: Tensor) -> Tensor:
    """Means where there is weight, and elsewhere the same at half the size, and so on: from near, or else from afar."""
    means = weighted / weight.clamp_min(1e-6)
    if bool((weight > 0).all()) or max(weight.shape[-2:]) == 1:
        return means
    coarse = _filled(*(F.avg_pool2d(part, 2, ceil_mode=True) for part in (weighted, weight)))
    smooth = F.interpolate(coarse, weight.shape[-2:], mode="bilinear", align_corners=False)
    return torch.where(weight > 0, means, smooth)
