"""Pictures kept as plain pixels in one `.npz` file, as `numpy.savez` writes it.

    x_train, y_train, x_test, y_test            and, if wanted, x_val, y_val, classes
    train_images, train_labels, val_images, ... as MedMNIST names them

Pictures are uint8: (N, H, W, 3), or (N, H, W) and (N, H, W, 1) for grey ones. Labels are whole numbers, (N,) or (N, 1).
`classes` holds the names of the classes; without it they are called by their numbers.
"""

import hashlib
import math
import os
import re
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.image_set import ImageSet, require_split
from vitreous.data.layouts.base import Layout, expanded
from vitreous.errors import InputError
from vitreous.files.limits import MAX_CLASS_NAME_CHARS, MAX_DATA_CLASSES
from vitreous.files.reading import is_text, reading, require_regular, truncate

_REMEDY = "write it again with numpy.savez"
_PICTURE_ARRAY = re.compile(r"x_(?P<after>\w+)|(?P<before>\w+)_images")  # name of an array -> split


class ArraySet(ImageSet):
    """Pixels (N, H, W, 3) and labels (N,) in memory."""

    def __init__(self, pixels: NDArray[np.uint8], labels: NDArray[np.int64], classes: tuple[str, ...], name: str):
        self.pixels, self.labels, self.classes, self._name = pixels, labels, classes, name

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        return f"{self._name}/{index}"

    def target(self, index: int) -> dict[str, Any]:
        return {"labels": int(self.labels[index])}

    def picture(self, index: int, *, at_least: int | None = None) -> Image.Image:
        return Image.fromarray(self.pixels[index])

    @cached_property
    def fingerprint(self) -> str:
        total = hashlib.sha256(np.ascontiguousarray(self.pixels).data)
        total.update(np.ascontiguousarray(self.labels).data)
        return total.hexdigest()


def array_splits(path: Path) -> dict[str, str] | None:
    return _picture_arrays(_opened(path)) if path.suffix.lower() == ".npz" and path.is_file() else None


def open_arrays(path: Path, split: str) -> ArraySet:
    file = _opened(path)
    arrays = _picture_arrays(file)
    name = require_split(split, arrays, f"'{path}'")
    pictures = arrays[name]
    labels = {found: _labels(path, file, array) for found, array in arrays.items()}
    pixels = _pixels(path, pictures, _array(path, file, pictures))
    classes = _classes(path, file, labels)
    if len(pixels) != len(labels[name]):
        raise InputError(f"'{path}' has {len(pixels)} pictures in {pictures} but {len(labels[name])} labels for them")
    return ArraySet(pixels, labels[name], classes, f"{path.name}/{name}")


def _opened(path: Path) -> Any:
    with reading(f"'{path}'", remedy=_REMEDY):
        require_regular(path, memory_bytes())
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array without a name")
        return file


def _array(path: Path, file: Any, name: str) -> NDArray[Any]:
    """One array, after a check of its header: a few bytes can ask for any amount of memory."""
    with reading(f"{name} in '{path}'", remedy=_REMEDY):
        member = next(entry for entry in file.zip.namelist() if entry in (name, f"{name}.npy"))
        with file.zip.open(member) as opened:
            version = np.lib.format.read_magic(opened)
            head = {(1, 0): np.lib.format.read_array_header_1_0}.get(version, np.lib.format.read_array_header_2_0)
            shape, _, dtype = head(opened)
            promised, stored = math.prod(shape) * dtype.itemsize, file.zip.getinfo(member).file_size - opened.tell()
        if dtype.hasobject:
            raise ValueError("it holds Python objects; only plain numbers and texts are read (allow_pickle is off)")
        if promised != stored:
            raise ValueError(
                f"its header announces {truncate(str(shape))} {dtype}, {promised:,} bytes, but it has {stored:,}"
            )
        if promised > memory_bytes():
            raise ValueError(f"it has {promised:,} bytes, this machine's memory {memory_bytes():,}")
        return file[name]


def memory_bytes() -> int:
    """Of the whole machine; what is larger cannot be held in memory, as arrays are."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else sys.maxsize


def _picture_arrays(file: Any) -> dict[str, str]:
    """Split -> name of the array with its pictures."""
    matches = {name: _PICTURE_ARRAY.fullmatch(name) for name in file.files}
    return {match["after"] or match["before"]: name for name, match in matches.items() if match}


def _pixels(path: Path, name: str, array: NDArray[Any]) -> NDArray[np.uint8]:
    colour = array.ndim == 4 and array.shape[-1] in (1, 3)
    if array.dtype != np.uint8 or not (colour or array.ndim == 3) or not array.size:
        raise InputError(
            f"{name} in '{path}' is {array.dtype} of shape {array.shape}; pictures are uint8 of shape (N, H, W, 3), "
            "(N, H, W, 1) or (N, H, W)"
        )
    grey = array if array.ndim == 3 else array[..., 0] if array.shape[-1] == 1 else None
    return array if grey is None else np.repeat(grey[..., None], 3, -1)


def _labels(path: Path, file: Any, pictures: str) -> NDArray[np.int64]:
    name = pictures.replace("_images", "_labels") if pictures.endswith("_images") else f"y_{pictures[2:]}"
    if name not in file.files:
        raise InputError(f"'{path}' has no {name}; arrays there: {', '.join(file.files)}")
    array = _array(path, file, name)
    one_each = array.ndim in (1, 2) and array.shape[1:] in ((), (1,))
    if array.dtype.kind not in "iu" or not one_each or not array.size or array.min() < 0:
        raise InputError(
            f"{name} in '{path}' is {array.dtype} of shape {array.shape}; labels are whole numbers from 0 up, one each"
        )
    if array.max() >= MAX_DATA_CLASSES:
        raise InputError(
            f"{name} in '{path}' holds the label {array.max()}; labels count the classes from 0, and at most "
            f"{MAX_DATA_CLASSES:,} are told apart"
        )
    return array.reshape(-1).astype(np.int64)


def _classes(path: Path, file: Any, labels: dict[str, NDArray[np.int64]]) -> tuple[str, ...]:
    highest = int(max(array.max() for array in labels.values()))
    if "classes" not in file.files:
        return tuple(map(str, range(highest + 1)))
    named = _array(path, file, "classes").reshape(-1)
    if len(named) > MAX_DATA_CLASSES or named.dtype.itemsize > 4 * MAX_CLASS_NAME_CHARS:
        raise InputError(
            f"'{path}' names {len(named):,} classes; at most {MAX_DATA_CLASSES:,} of "
            f"{MAX_CLASS_NAME_CHARS:,} characters"
        )
    names = tuple(map(str, named))
    if not all(map(is_text, names)):
        raise InputError(f"a name among the classes of '{path}' is no text; write it again with numpy.savez")
    if highest >= len(names):
        raise InputError(f"'{path}' names {len(names)} classes, but there is a label {highest}; labels count from 0")
    return names


LAYOUT = Layout(
    name="arrays",
    example="FILE.npz with x_train, y_train, x_test, y_test (pictures are uint8, N x H x W x 3); classes if wanted",
    splits=lambda data: array_splits(expanded(data)),
    open_split=lambda request: open_arrays(request.path, request.split),
    order=30,
)
