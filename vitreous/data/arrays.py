"""Pictures kept as plain pixels in one `.npz` file, as `numpy.savez` writes it.

    x_train, y_train, x_test, y_test            and, if wanted, x_val, y_val, classes
    train_images, train_labels, val_images, ... as MedMNIST names them

Pictures are uint8: (N, H, W, 3), or (N, H, W) and (N, H, W, 1) for grey ones. Labels are whole numbers, (N,) or (N, 1).
`classes` holds the names of the classes; without it they are called by their numbers.
"""

import hashlib
import re
import zipfile
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.image_set import ImageSet, own_splits, require_split
from vitreous.errors import InputError

PICTURES = re.compile(r"x_(?P<after>\w+)|(?P<before>\w+)_images")  # name of an array -> split


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


def looks_like_arrays(path: Path) -> bool:
    return path.suffix.lower() == ".npz" and path.is_file()


def array_splits(path: Path) -> tuple[str, ...]:
    return own_splits(_picture_arrays(_opened(path)))


def open_arrays(path: Path, split: str) -> ArraySet:
    file = _opened(path)
    arrays = _picture_arrays(file)
    name = require_split(split, arrays, f"'{path}'")
    pictures = arrays[name]
    labels_of = {found: _label_name(array) for found, array in arrays.items()}
    try:
        labels = {found: _labels(path, file, array) for found, array in labels_of.items()}
        pixels = _pixels(path, pictures, file[pictures])
        classes = _classes(path, file, labels)
    except (ValueError, OSError, zipfile.BadZipFile) as reason:
        if isinstance(reason, InputError):
            raise
        raise InputError(f"'{path}' cannot be read: {reason}; write it again with numpy.savez") from reason
    if len(pixels) != len(labels[name]):
        raise InputError(f"'{path}' has {len(pixels)} pictures in {pictures} but {len(labels[name])} labels for them")
    return ArraySet(pixels, labels[name], classes, f"{path.name}/{name}")


def _opened(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, zipfile.BadZipFile) as reason:
        raise InputError(f"'{path}' cannot be read: {reason}; write it again with numpy.savez") from reason


def _picture_arrays(file: Any) -> dict[str, str]:
    """Split -> name of the array with its pictures."""
    matches = {name: PICTURES.fullmatch(name) for name in file.files}
    return {match["after"] or match["before"]: name for name, match in matches.items() if match}


def _label_name(pictures: str) -> str:
    return pictures.replace("_images", "_labels") if pictures.endswith("_images") else f"y_{pictures[2:]}"


def _pixels(path: Path, name: str, array: NDArray[Any]) -> NDArray[np.uint8]:
    colour = array.ndim == 4 and array.shape[-1] in (1, 3)
    if array.dtype != np.uint8 or not (colour or array.ndim == 3) or not array.size:
        raise InputError(
            f"{name} in '{path}' is {array.dtype} of shape {array.shape}; pictures are uint8 of shape (N, H, W, 3), "
            "(N, H, W, 1) or (N, H, W)"
        )
    grey = array if array.ndim == 3 else array[..., 0] if array.shape[-1] == 1 else None
    return array if grey is None else np.repeat(grey[..., None], 3, -1)


def _labels(path: Path, file: Any, name: str) -> NDArray[np.int64]:
    if name not in file.files:
        raise InputError(f"'{path}' has no {name}; arrays there: {', '.join(file.files)}")
    array = file[name]
    one_each = array.ndim in (1, 2) and array.shape[1:] in ((), (1,))
    if array.dtype.kind not in "iu" or not one_each or not array.size or array.min() < 0:
        raise InputError(
            f"{name} in '{path}' is {array.dtype} of shape {array.shape}; labels are whole numbers from 0 up, one each"
        )
    return array.reshape(-1).astype(np.int64)


def _classes(path: Path, file: Any, labels: dict[str, NDArray[np.int64]]) -> tuple[str, ...]:
    highest = int(max(array.max() for array in labels.values()))
    if "classes" not in file.files:
        return tuple(map(str, range(highest + 1)))
    names = tuple(str(name) for name in file["classes"].reshape(-1))
    if highest >= len(names):
        raise InputError(f"'{path}' names {len(names)} classes, but there is a label {highest}; labels count from 0")
    return names
