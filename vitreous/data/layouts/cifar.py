"""CIFAR-10 and CIFAR-100 as their authors publish them "for Python": a folder of pickles, or the archive it came in.

    cifar-10-batches-py/   data_batch_1 ... data_batch_5, test_batch, batches.meta
    cifar-100-python/      train, test, meta

A pickle may run any code while it is read. These are read by a reader that knows numbers, texts, lists, dictionaries
and arrays, and refuses everything else.
"""

import io
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.data.image_set import require_split
from vitreous.data.layouts.arrays import ArraySet
from vitreous.data.layouts.base import Layout, expanded
from vitreous.errors import InputError
from vitreous.files.limits import MAX_ARCHIVE_BYTES
from vitreous.files.reading import read_bytes, reading, reason_of

CIFAR_SIDE = 32


class Edition(NamedTuple):
    folder: str
    archive: str
    files: Mapping[str, tuple[str, ...]]  # split -> its files
    names: str  # file with the names of the classes
    names_key: bytes
    labels_key: bytes


_FILES_10 = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
_FILES_100 = {"train": ("train",), "test": ("test",)}
EDITIONS = (
    Edition("cifar-10-batches-py", "cifar-10-python.tar.gz", _FILES_10, "batches.meta", b"label_names", b"labels"),
    Edition("cifar-100-python", "cifar-100-python.tar.gz", _FILES_100, "meta", b"fine_label_names", b"fine_labels"),
)


def find_cifar(path: Path) -> tuple[Edition, Path] | None:
    """The edition at `path`: its folder, the folder that holds it, or its archive."""
    for edition in EDITIONS:
        for place in (path, path / edition.folder):
            if (place / edition.names).is_file() and (place / edition.files["test"][0]).is_file():
                return edition, place
        for place in (path, path / edition.archive):
            if place.name == edition.archive and place.is_file():
                return edition, place
    return None


def open_cifar(path: Path, split: str) -> ArraySet:
    found = find_cifar(path)
    assert found is not None, "asked only after the layout was recognised"
    edition, place = found
    name = require_split(split, edition.files, f"'{place}'")
    if place.is_file():
        contents = _unpacked(place, edition)
    else:
        contents = {file: _stored(place, file) for file in (edition.names, *edition.files[name])}
    names = _content(place, edition.names, contents, edition.names_key)[edition.names_key]
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names) or not names:
        raise _damaged(place, edition.names, "it does not list the names of the classes")
    classes = tuple(name.decode(errors="replace") if isinstance(name, bytes) else name for name in names)
    parts = [_part(place, file, contents, edition.labels_key, len(classes)) for file in edition.files[name]]
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return ArraySet(pixels, labels, classes, name)


def _stored(folder: Path, file: str) -> bytes:
    if not (folder / file).is_file():
        raise InputError(f"'{folder}' lacks {file}; download it again")
    return read_bytes(folder / file, MAX_ARCHIVE_BYTES)


def _unpacked(place: Path, edition: Edition) -> dict[str, bytes]:
    """All members at once: a compressed archive can only be read from its beginning."""
    wanted = {f"{edition.folder}/{file}": file for files in edition.files.values() for file in files}
    wanted[f"{edition.folder}/{edition.names}"] = edition.names
    contents: dict[str, bytes] = {}
    with reading(f"'{place}'", remedy="download it again"), tarfile.open(place, "r:gz") as archive:
        for member in archive:
            if member.offset_data + member.size > MAX_ARCHIVE_BYTES:
                raise InputError(f"'{place}' unpacks to more than {MAX_ARCHIVE_BYTES:,} bytes; download it again")
            if member.name in wanted and member.isreg():
                content = archive.extractfile(member)
                assert content is not None
                contents[wanted[member.name]] = content.read()
    missing = sorted(set(wanted.values()) - set(contents))
    if missing:
        raise InputError(f"'{place}' lacks {missing[0]}; download it again")
    return contents


def _part(
    place: Path, file: str, contents: dict[str, bytes], labels_key: bytes, classes: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    content = _content(place, file, contents, labels_key, b"data")
    listed = content[labels_key]
    # Looked at one by one: lists within lists, a few bytes in a pickle, could stand for any number of values.
    if not isinstance(listed, list) or not all(isinstance(label, int) and abs(label) < 1 << 31 for label in listed):
        raise _damaged(place, file, "its labels are no whole numbers")
    labels = np.array(listed, np.int64)
    # Rows of 3072: first all red values, then all green, then all blue.
    shape, pixels = (len(labels), 3, CIFAR_SIDE, CIFAR_SIDE), content[b"data"]
    if not len(labels) or not isinstance(pixels, _Array) or len(pixels.content) != int(np.prod(shape)):
        raise _damaged(
            place, file, f"it does not hold {CIFAR_SIDE} x {CIFAR_SIDE} pictures for its {len(labels)} labels"
        )
    if not 0 <= labels.min() <= labels.max() < classes:
        raise _damaged(place, file, f"its labels go from {labels.min()} to {labels.max()} for {classes} classes")
    rows = np.frombuffer(pixels.content, np.uint8).reshape(shape)
    return np.ascontiguousarray(rows.transpose(0, 2, 3, 1)), labels  # (N, 32, 32, 3)


def _content(place: Path, file: str, contents: dict[str, bytes], *keys: bytes) -> dict[bytes, Any]:
    """What a file holds under the keys; files of Python 2 have bytes for keys, rewritten ones text."""
    try:
        content = _Reader(io.BytesIO(contents[file]), encoding="bytes").load()
        return {key: content[key] if key in content else content[key.decode()] for key in keys}
    except Exception as reason:  # a damaged pickle fails in almost any way
        raise _damaged(place, file, reason_of(reason)) from reason


def _damaged(place: Path, file: str, reason: str) -> InputError:
    return InputError(f"'{place / file}' is damaged or no CIFAR file: {reason}; download it again")


class _Array:
    """Stands in for numpy's array while a pickle is read: keeps what it is given, does nothing with it."""

    content = b""

    def __setstate__(self, state: Any) -> None:
        _, _, dtype, fortran, content = state
        plain = isinstance(dtype, _Dtype) and dtype.code in (b"u1", "u1") and not fortran
        if not plain or not isinstance(content, bytes):
            raise ValueError("its array does not hold plain bytes")
        self.content = content


class _Dtype:
    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like mean nothing for single bytes."""


_KNOWN_NAMES: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): lambda text, _: text.encode("latin-1"),  # how Python 3 writes bytes into an old pickle
}
_STAND_INS = {"_reconstruct": lambda *_: _Array(), "ndarray": _Array, "dtype": _Dtype}
for package in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray"):
    _KNOWN_NAMES |= {(package, name): stand_in for name, stand_in in _STAND_INS.items()}


class _Reader(pickle._Unpickler):
    """In Python: the one in C makes room for as many remembered objects as a number in the file says."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN_NAMES:
            raise ValueError(f"it asks for {module}.{name}, which has no place in it")
        return _KNOWN_NAMES[module, name]


LAYOUT = Layout(
    name="CIFAR",
    example="cifar-10-batches-py/ or cifar-100-python/, the folder that holds it, or its .tar.gz",
    splits=lambda data: ("train", "test") if find_cifar(expanded(data)) else None,
    open_split=lambda request: open_cifar(request.path, request.split),
    order=20,
)
