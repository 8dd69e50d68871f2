"""Every picture that names stand for, as one set, however many: for verbs that work through millions.

Besides what `find_pictures` takes, names may be tar shards (photos-{000..099}.tar), Parquet files, or folders of
either. A file's label is the name of its folder; shards and Parquet files say it themselves, or there is none.
"""

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous.data.image_set import EncodedSet, ImageSet, describe_passed_over, digest, picture_files
from vitreous.data.layouts.shards import TarPictures, matching_files, names_shards, shards_in
from vitreous.data.parquet_pictures import ParquetPictures
from vitreous.data.picture_table import find_table
from vitreous.data.pictures import Picture, Pictured, find_pictures
from vitreous.errors import InputError

PARQUET = ".parquet"


class PackedNames(Sequence[str]):
    """Texts in one piece of memory: a list of millions of strings would take several times as much."""

    def __init__(self, names: Iterable[str]) -> None:
        blob, ends = bytearray(), [0]
        for name in names:
            blob += name.encode(errors="surrogateescape")
            ends.append(len(blob))
        self._blob, self._ends = bytes(blob), np.array(ends, np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        place = range(len(self))[index]
        return self._blob[self._ends[place] : self._ends[place + 1]].decode(errors="surrogateescape")


class NamedFiles(EncodedSet):
    """Picture files by their paths."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = PackedNames(names)
        numbers: dict[str, int] = {}
        folders = (os.path.basename(os.path.dirname(os.path.abspath(name))) for name in self.names)
        self._labels = np.fromiter((numbers.setdefault(folder, len(numbers)) for folder in folders), np.int32)
        self.classes = tuple(numbers)

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return self.names[index]

    def target(self, index: int) -> dict[str, Any]:
        return {"labels": int(self._labels[index])}

    def encoded(self, index: int) -> Path:
        return Path(self.names[index])

    @cached_property
    def fingerprint(self) -> str:
        """Changes when files are added, removed or renamed."""
        return digest(self.names)


class ListedPictures(ImageSet):
    """Pictures in memory, or drawn on demand."""

    def __init__(self, pictures: Sequence[Picture]) -> None:
        self.pictures = pictures
        self.classes = tuple(dict.fromkeys(picture.label for picture in pictures if picture.label is not None))

    def __len__(self) -> int:
        return len(self.pictures)

    def name(self, index: int) -> str:
        return self.pictures[index].name

    def target(self, index: int) -> dict[str, Any]:
        label = self.pictures[index].label
        return {} if label is None else {"labels": self.classes.index(label)}

    def picture(self, index: int, *, at_least: int | None = None) -> Image.Image:
        return self.pictures[index].load()

    @cached_property
    def fingerprint(self) -> str:
        return digest(picture.name for picture in self.pictures)


class JoinedPictures(ImageSet):
    """Several sets, one after the other."""

    def __init__(self, parts: Sequence[ImageSet]) -> None:
        self.parts, self._ends = parts, list(accumulate(len(part) for part in parts))
        self.classes = tuple(dict.fromkeys(name for part in parts for name in part.classes))

    def _found(self, index: int) -> tuple[ImageSet, int]:
        place = range(len(self))[index]
        number = bisect_right(self._ends, place)
        return self.parts[number], place - (self._ends[number - 1] if number else 0)

    def __len__(self) -> int:
        return self._ends[-1]

    def name(self, index: int) -> str:
        part, place = self._found(index)
        return part.name(place)

    def target(self, index: int) -> dict[str, Any]:
        name = class_name(*self._found(index))
        return {} if name is None else {"labels": self.classes.index(name)}

    def picture(self, index: int, *, at_least: int | None = None) -> Image.Image:
        part, place = self._found(index)
        return part.picture(place, at_least=at_least)

    @property
    def fingerprint(self) -> str:
        return digest(part.fingerprint for part in self.parts)


def class_name(images: ImageSet, index: int) -> str | None:
    """What the data call the class of a picture, where they know it."""
    label = images.target(index).get("labels")
    return None if label is None else images.classes[label]


def gather_pictures(names: Sequence[Pictured], *, size: tuple[int, int]) -> ImageSet:
    """All pictures of all names, in the order given; no picture is opened yet.

    Args:
        names: See the docstring of this module.
        size: (H, W) at which embedded samples are drawn.
    """
    parts = [part for place, name in enumerate(names, 1) for part in _parts_of(name, place, size)]
    if not parts:
        raise InputError("no images given; give files, folders, patterns, tar shards or Parquet files")
    files = [part for part in parts if isinstance(part, NamedFiles)]
    if len(parts) == len(files) > 1:  # a picture named twice is looked at once
        return NamedFiles(dict.fromkeys(name for part in files for name in part.names))
    return parts[0] if len(parts) == 1 else JoinedPictures(parts)


def list_pictures(names: Sequence[Pictured], *, size: tuple[int, int]) -> list[Picture]:
    """The same as a list, each picture once."""
    images = gather_pictures(names, size=size)
    found = {images.name(index): index for index in range(len(images))}
    return [Picture(name, class_name(images, index), partial(images.picture, index)) for name, index in found.items()]


def _parts_of(given: Pictured, place: int, size: tuple[int, int]) -> Iterator[ImageSet]:
    name = str(given) if isinstance(given, str | Path) else ""
    path = Path(name).expanduser()
    if names_shards(name):
        yield TarPictures([Path(file) for file in matching_files(str(path))])
    elif name.endswith(PARQUET):
        yield ParquetPictures([Path(file) for file in matching_files(str(path))])
    elif name and path.is_dir():
        yield from _parts_of_folder(path)
    else:
        found = find_pictures([given], size=size)
        if not name:
            found = [found[0]._replace(name=f"image {place}")]
        on_disk = name and name.partition(":")[0] != "shapes" and find_table(name) is None
        yield NamedFiles(picture.name for picture in found) if on_disk else ListedPictures(found)


def _parts_of_folder(folder: Path) -> Iterator[ImageSet]:
    """Its picture files; of a folder without any, its shards or Parquet files."""
    found, passed_over = picture_files(folder)
    if found:
        if passed_over:
            print(f"{folder}: {describe_passed_over(passed_over)}")
        yield NamedFiles((folder / name).as_posix() for name in found)
        return
    shards, tables = sorted(shards_in(folder)), sorted(folder.rglob(f"*{PARQUET}"))
    if shards:
        yield TarPictures(shards)
    if tables:
        yield ParquetPictures(tables)
    if not shards and not tables:
        find_pictures([str(folder)], size=(1, 1))  # says what is wrong
