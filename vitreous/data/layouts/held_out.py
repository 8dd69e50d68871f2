"""Data without splits of their own: a share of the pictures is held out for validation, chosen by their content.

Whether a picture is held out depends on the bytes of its file alone: not on its name, its date, the order of files or
the machine. Copies of a file therefore fall on the same side, and a picture stays on its side when others are added.
If a class would have no picture on one of the sides, the nearest picture moves there.

Of large files only the start, the middle and the end are read, which takes about as long as looking up their size.
"""

import hashlib
import os
import sys
import time
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache, partial
from pathlib import Path

from vitreous.data.image_set import ImageSet, Subset, digest
from vitreous.errors import InputError

VAL_FRACTION = 0.2
CONTENT_PIECE_BYTES = 1 << 16  # files of up to three pieces are read as a whole
READER_THREADS = 8  # most of the time is spent waiting for the disk
PROGRESS_SECONDS = 10.0


class HeldOut(Subset):
    """The part to train on, or the part held out from it."""

    def __init__(self, images: ImageSet, kept: Sequence[int], share: float, val_fraction: float) -> None:
        super().__init__(images, kept)
        self._share, self.val_fraction = share, val_fraction

    @cached_property
    def fingerprint(self) -> str:
        names = digest(self.name(index) for index in range(len(self)))
        return f"{self._share:g} of {self.images.fingerprint} ({names[:12]})"


def held_out(images: ImageSet, split: str, val_fraction: float, *, by_class: bool, where: str) -> ImageSet:
    """The pictures of one split; with a fraction of 1 all of them are held out, and none is opened.

    Args:
        images: All pictures.
        split: train or val.
        val_fraction: Share of the pictures that is held out.
        by_class: Each class has pictures on both sides, if it has two different ones.
        where: What messages call the data.
    """
    if not 0 < val_fraction <= 1:
        raise InputError(f"val_fraction {val_fraction:g} cannot be used; it must be above 0 and at most 1")
    if split not in ("train", "val"):
        raise InputError(
            f"{where} has no splits, so that only train and val can be made from it; '{split}' was asked for"
        )
    if val_fraction == 1:
        if split == "train":
            raise InputError(f"{where} has no splits and all of it is held out (val_fraction 1): nothing to train on")
        return images
    classes = [images.target(index)["labels"] if by_class else 0 for index in range(len(images))]
    held = sides(list(content_places(images)), classes, val_fraction)
    kept = [index for index, out in enumerate(held) if out == (split == "val")]
    if not kept:
        raise InputError(
            f"{where} has no splits and too few different pictures ({len(images)} files) to hold some out; add some, "
            "or make the folders train and val"
        )
    return HeldOut(images, kept, val_fraction if split == "val" else 1 - val_fraction, val_fraction)


def sides(places: Sequence[float], classes: Sequence[Hashable], val_fraction: float) -> list[bool]:
    """Which pictures are held out: those whose place from 0 to 1 is below the fraction, and at least one of a class."""
    members = defaultdict(list)
    for place, name in zip(places, classes, strict=True):
        members[name].append(place)
    limits = {}
    for name, found in members.items():
        first, last = min(found), max(found)
        # What is below the limit is held out: from the second smallest place up to the largest both sides have some.
        second = min((place for place in found if place > first), default=first)
        limits[name] = min(max(val_fraction, second), last)
    return [place < limits[name] for place, name in zip(places, classes, strict=True)]


def content_places(images: ImageSet) -> Iterator[float]:
    """A number from 0 to 1 for each picture, by its content; of one that cannot be opened, by its name."""
    last = time.monotonic()
    with ThreadPoolExecutor(READER_THREADS) as pool:
        for done, place in enumerate(pool.map(partial(_place, images), range(len(images))), 1):
            yield place
            if time.monotonic() - last > PROGRESS_SECONDS:  # on a slow disk, many files take a while
                last = time.monotonic()
                print(f"dividing the data by content: {done}/{len(images)} files", file=sys.stderr, flush=True)


def _place(images: ImageSet, index: int) -> float:
    stored = images.encoded(index)
    try:
        content = stored if isinstance(stored, bytes) else _content_of(Path(stored))  # type: ignore[arg-type]
    except OSError:  # reported as unreadable when the picture is needed
        content = images.name(index).encode(errors="surrogateescape")
    return int.from_bytes(hashlib.blake2b(content, digest_size=6).digest()) / (1 << 48)


def _content_of(file: Path) -> bytes:
    info = os.stat(file)
    return _pieces(os.fspath(file), info.st_size, info.st_mtime_ns)


@lru_cache(maxsize=1 << 20)
def _pieces(file: str, size: int, changed: int) -> bytes:
    """A digest of the file. Train and val are opened one after the other; the time of the last change keeps it true."""
    total = hashlib.blake2b(str(size).encode(), digest_size=16)
    with open(file, "rb") as stream:
        if size <= 3 * CONTENT_PIECE_BYTES:
            total.update(stream.read(3 * CONTENT_PIECE_BYTES))
        else:
            for start in (0, (size - CONTENT_PIECE_BYTES) // 2, size - CONTENT_PIECE_BYTES):
                stream.seek(start)
                total.update(stream.read(CONTENT_PIECE_BYTES))
    return total.digest()
