"""What counts as a picture, and which pictures a name refers to.

Names are files, folders, patterns such as 'photos/*.jpg', tables that list pictures (photos.csv), or samples of the
embedded data: `shapes:val:0-7` means samples 0 to 7 of its validation split, so that everything can be tried without a
file.

Whatever Python code passes as an image becomes a picture here, by one rule (`as_picture`), before it is resized and
normalised for a model. The normalised input of a network is not a picture.
"""

import glob
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.image import SUFFIXES, ImageError, load_image, upright_rgb
from vitreous.data.image_set import describe_passed_over, picture_files
from vitreous.data.layouts.shapes import SHAPES_SEED, parse_variant
from vitreous.data.picture_table import PictureTable, find_table
from vitreous.errors import InputError

_SAMPLE_NAME = re.compile(r"shapes(?::([^:]+))?:([a-z]+):(\d{1,9})(?:-(\d{1,9}))?")  # variant, split, first, last
_ACCEPTED_NAMES = (
    "image files, folders of images, patterns such as 'photos/*.jpg', tables such as photos.csv, or shapes:val:0-7"
)


_ACCEPTED_PICTURES = (
    "a path, a PIL image, uint8 values, or floats from 0 to 1; arrays (H, W, 3), tensors (3, H, W), or grey (H, W)"
)
_FLOAT_TOLERANCE = 1e-3  # by which floats may exceed 0 and 1: less than a step of a byte

Pictured = str | os.PathLike[str] | Image.Image | NDArray[Any] | Tensor


def as_picture(given: Pictured) -> Image.Image:
    """The argument as an 8-bit RGB picture, upright and at its own size, or an InputError.

    Strings and paths are files. Pictures of PIL are turned upright as files are. Arrays and tensors hold bytes, or
    floats from 0 to 1; three or four axes, the first of which may be a batch of one. Colours are the last axis of an
    array and the first of a tensor, unless only the other one can be.
    """
    if isinstance(given, str | os.PathLike):
        return load_image(given)
    if isinstance(given, Image.Image):
        try:
            return upright_rgb(given)
        except Exception as error:  # a file that Pillow has opened is decoded only here, and may be damaged
            name = getattr(given, "filename", "") or "given"
            raise ImageError(f"image {name!r} cannot be decoded: {error}; copy or download it again") from error
    if not isinstance(given, Tensor | np.ndarray):
        raise InputError(f"{_described_other(given)}. Accepted: {_ACCEPTED_PICTURES}")
    return upright_rgb(Image.fromarray(_as_bytes(_colours_last(given), given)))


def _colours_last(given: Tensor | NDArray[Any]) -> NDArray[Any]:
    """(H, W) or (H, W, 3 or 4)."""
    values = given.detach().cpu() if isinstance(given, Tensor) else given
    values = np.asarray(values.float() if isinstance(values, Tensor) and values.is_floating_point() else values)
    if values.ndim == 4 and len(values) == 1:
        values = values[0]
    if values.ndim == 3:
        first, last = values.shape[0] in (1, 3, 4), values.shape[2] in (1, 3, 4)
        if first and (isinstance(given, Tensor) or not last):
            values = values.transpose(1, 2, 0)
        elif not last:
            raise InputError(f"{_described(given)} was given as a picture; accepted: {_ACCEPTED_PICTURES}")
        values = values[..., 0] if values.shape[2] == 1 else values
    if values.ndim not in (2, 3) or 0 in values.shape:
        several = "; give several pictures as a list" if values.ndim == 4 else ""
        raise InputError(f"{_described(given)} was given as a picture; accepted: {_ACCEPTED_PICTURES}{several}")
    return np.ascontiguousarray(values)


def _as_bytes(values: NDArray[Any], given: Tensor | NDArray[Any]) -> NDArray[np.uint8]:
    if values.dtype == np.uint8:
        return values
    if not np.issubdtype(values.dtype, np.floating):
        raise InputError(
            f"{_described(given)} was given as a picture; convert it to uint8. Accepted: {_ACCEPTED_PICTURES}"
        )
    low, high = float(values.min()), float(values.max())
    if low >= -_FLOAT_TOLERANCE and high <= 1 + _FLOAT_TOLERANCE:  # NaN is refused too
        return (values.clip(0, 1) * 255).round().astype(np.uint8)
    if low < 0:
        what = (
            "which looks like a normalised network input: give the picture itself, or, to have the input explained, "
            "vitreous.explain(vitreous.load_model(...), inputs, preprocessed=True)"
        )
    elif high <= 255 + _FLOAT_TOLERANCE:
        what = "which look like bytes: convert it to uint8, or divide it by 255"
    else:
        what = "which is no picture that can be understood"
    raise InputError(
        f"{_described(given)} with values from {low:.3g} to {high:.3g} was given, {what}. "
        f"Accepted: {_ACCEPTED_PICTURES}"
    )


def _described(given: Tensor | NDArray[Any]) -> str:
    kind = "a tensor" if isinstance(given, Tensor) else "an array"
    return f"{kind} of {str(given.dtype).removeprefix('torch.')} and shape {tuple(given.shape)}"


def _described_other(given: Any) -> str:
    if isinstance(given, bytes | bytearray):
        return "the content of a file was given as a picture; open it first: PIL.Image.open(io.BytesIO(content))"
    if hasattr(given, "read"):
        return "an open file was given as a picture; give its path, or PIL.Image.open(file)"
    return f"a value of the type {type(given).__name__} was given as a picture"


class Picture(NamedTuple):
    name: str  # as the user knows it: path or shapes:val:3
    label: str | None  # what the name says about the class: parent folder or the sample's category
    load: Callable[[], Image.Image]


def find_pictures(names: Sequence[Pictured], *, size: tuple[int, int]) -> list[Picture]:
    """Every picture the names stand for, in the order given and sorted within a folder; no file is opened yet.

    Args:
        names: See the docstring of this module; pictures in memory are named by their position: image 1.
        size: (H, W) at which embedded samples are drawn.
    """
    if not len(names):
        raise InputError(f"no images given; accepted: {_ACCEPTED_NAMES}")
    found = []
    for place, name in enumerate(names, 1):
        if isinstance(name, str | os.PathLike):
            found += _pictures_of(os.fspath(name), size)
        else:
            found.append(Picture(f"image {place}", None, partial(as_picture, as_picture(name))))
    return list({picture.name: picture for picture in found}.values())  # a picture named twice is shown once


def _pictures_of(name: str, size: tuple[int, int]) -> list[Picture]:
    if name == "shapes" or name.startswith("shapes:"):
        return _samples(name, size)
    if (table := find_table(name)) is not None:
        return _listed(table)
    path = Path(name)
    if path.is_dir():
        found, passed_over = picture_files(path)
        if not found:
            others = f" ({describe_passed_over(passed_over)})" if passed_over else ""
            raise InputError(
                f"folder {name!r} holds no image ({', '.join(SUFFIXES)}){others}; accepted: {_ACCEPTED_NAMES}"
            )
        if passed_over:
            print(f"{name}: {describe_passed_over(passed_over)}")
        files = [path / file for file in found]
    elif path.exists():
        files = [path]
    else:
        files = [Path(match) for match in sorted(glob.glob(name, recursive=True)) if Path(match).is_file()]
        if not files:
            raise InputError(f"no image at {name!r}; accepted: {_ACCEPTED_NAMES}")
    return [Picture(file.as_posix(), file.resolve().parent.name, partial(load_image, file)) for file in files]


def _listed(table: PictureTable) -> list[Picture]:
    """Each picture of a table once; its class is known where the table gives it one label."""
    found: dict[str, Picture] = {}
    table.require_pictures(table.rows, follow=True, strict=True)  # named by the user here, not by data from elsewhere
    for row in table.rows:
        file, label = table.picture(row), None if table.has("x1") else row.cells.get("label")
        found.setdefault(row.path, Picture(file.as_posix(), label or None, partial(load_image, file)))
    return list(found.values())


def _samples(name: str, size: tuple[int, int]) -> list[Picture]:
    from vitreous.data.shapes.samples import CATEGORIES, Shapes  # only when embedded samples are asked for

    match = _SAMPLE_NAME.fullmatch(name)
    if match is None:
        raise InputError(
            f"cannot read {name!r}; embedded samples are written shapes:SPLIT:FIRST-LAST, as in shapes:val:0-7, "
            "or with a difficulty or a shortcut, as in shapes:hard:val:0-7 or shapes:corner_mark=0.9:val:0-7"
        )
    variant, split, first = parse_variant(match[1] or ""), match[2], int(match[3])
    last = int(match[4] or first)
    if last < first:
        raise InputError(f"{name!r} is empty: {last} is smaller than {first}; write the smaller index first")
    scenes = Shapes(split, count=last + 1, size=size, seed=SHAPES_SEED, **variant._asdict())

    def picture(index: int) -> Picture:
        called = f"{name[: match.start(3)]}{index}"
        return Picture(called, CATEGORIES[scenes.label(index)], lambda: Image.fromarray(scenes[index].image))

    return [picture(index) for index in range(first, last + 1)]
