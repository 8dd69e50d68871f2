"""Tar shards as WebDataset writes them: `train-000000.tar`, `train-000001.tar`, ..., `val-000000.tar`.

Nothing is streamed: an index (see `shard_index.py`) says where each sample is, and one read at that offset gets it.
So shards are a set like any other, with the same promises about order, workers, ranks and resuming. On a local disk
that also proved faster than streaming: with 12,000 JPEGs of 55 kB in 30 shards, tarfile streamed 6,700 a second from
memory and 2,500-4,700 from the disk; reads by index gave 80,000-125,000 and 5,500-8,500 in random order.
"""

import glob
import os
import re
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from vitreous.data.image import ImageError
from vitreous.data.image_set import SPLITS, EncodedSet, digest, require_split
from vitreous.data.layouts.base import Layout, expanded
from vitreous.data.layouts.shard_index import build_index
from vitreous.errors import InputError
from vitreous.files.limits import MAX_DATA_CLASSES
from vitreous.files.reading import MACHINE_REMEDIES, read_names, reading, truncate

SPLIT_WORD = re.compile(
    rf"(?:^|[^a-z])({'|'.join(sorted({name for names in SPLITS.values() for name in names}))})(?=[^a-z]|$)"
)
RANGE = re.compile(r"(\d+)\.\.(\d+)")
DIGITS = len(str(MAX_DATA_CLASSES))
MOST_FILES = 1_000_000  # that a pattern may stand for
OPEN_FILES = 64  # shards a process keeps open


class ShardSet(EncodedSet):
    """The samples of one split's shards."""

    def __init__(self, data: str, split: str) -> None:
        shards = find_shards(data)
        name = require_split(split, shards, f"'{data}'")
        self.shards = shards[name]
        # Labels count the same in every split, so all splits have a say in what the classes are.
        indices = {found: build_index(paths) for found, paths in shards.items()}
        written = np.unique(np.concatenate([np.unique(index.labels) for index in indices.values()]))
        with reading(f"a label in the shards of '{data}'", remedy="write labels as UTF-8"):
            labels = [label.decode() for label in written.tolist()]
        self.classes, number = _classes(self.shards[0].parent, labels)
        index = indices[name]
        self._names, self._offsets, self._sizes = index.names, index.offsets, index.sizes
        self._labels = np.array(number)[np.searchsorted(written, index.labels)]
        self._shard = np.repeat(np.arange(len(self.shards)), index.counts)
        self.file_lengths = tuple(index.counts.tolist())

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        return f"{self.shards[self._shard[index]].name}/{self._names[index].decode(errors='surrogateescape')}"

    def target(self, index: int) -> dict[str, Any]:
        return {"labels": int(self._labels[index])}

    def encoded(self, index: int) -> bytes:
        try:
            file = _open_shard(self.shards[self._shard[index]], os.getpid())
            file.seek(self._offsets[index])
            return file.read(self._sizes[index])
        except OSError as reason:
            if reason.errno in MACHINE_REMEDIES:
                raise
            raise ImageError(
                f"image {self.name(index)!r} cannot be read: {reason.strerror}; check the shard"
            ) from reason

    @cached_property
    def fingerprint(self) -> str:
        """Changes when samples are added, removed, renamed, or change their label or length."""
        labels, sizes = self._labels.tolist(), self._sizes.tolist()
        return digest(f"{self.name(index)}\0{labels[index]}\0{sizes[index]}" for index in range(len(self)))


@lru_cache(OPEN_FILES)
def _open_shard(path: Path, process: int) -> IO[bytes]:
    """Open in each process anew: a file inherited from the parent would share its position with it."""
    return open(path, "rb")


def _classes(folder: Path, written: list[str]) -> tuple[tuple[str, ...], list[int]]:
    """Names of the classes, and the number of each label as it is written in the shards."""
    listed = folder / "classes.txt"
    names = read_names(listed) if listed.is_file() else None
    if all(label.isascii() and label.isdigit() for label in written):
        highest = max(written, key=lambda label: (len(label.lstrip("0")), label.lstrip("0")))
        if len(highest.lstrip("0")) > DIGITS or int(highest) >= MAX_DATA_CLASSES:
            raise InputError(
                f"there is a label {truncate(highest)} in the shards of '{folder}'; labels count the classes from 0, "
                f"and at most {MAX_DATA_CLASSES:,} are told apart"
            )
        numbers = [int(label) for label in written]
        names = [str(number) for number in range(max(numbers) + 1)] if names is None else names
        unknown = [label for label, number in zip(written, numbers, strict=True) if number >= len(names)]
    else:
        names = sorted(written) if names is None else names
        places = {name: place for place, name in reversed(list(enumerate(names)))}
        unknown = [label for label in written if label not in places]
        numbers = [] if unknown else [places[label] for label in written]
    if unknown:
        raise InputError(
            f"label {unknown[0]!r} in the shards of '{folder}' is none of the {len(names)} classes in classes.txt; "
            "it has one name a line, and labels are names, or numbers that count from 0"
        )
    return tuple(names), numbers


# ---- which files -----------------------------------------------------------------------------------------------


def shard_splits(data: str) -> dict[str, list[Path]] | None:
    folder = expanded(data)
    if folder.is_dir():
        return _by_split(_shards_in(folder)) or None
    return find_shards(data) if data.endswith(".tar") and (folder.is_file() or set("{*?[") & set(data)) else None


def find_shards(data: str) -> dict[str, list[Path]]:
    """Split -> shards, for a folder or a pattern."""
    folder = expanded(data)
    paths = _shards_in(folder) if folder.is_dir() else [Path(name) for name in _matches(str(folder))]
    found = _by_split(paths)
    if not found:
        raise InputError(
            f"none of the {len(paths)} shards of '{data}' says in its name which split it belongs to; call them "
            "train-000000.tar, val-000000.tar, ..., or put them in folders train/ and val/"
        )
    return found


def _shards_in(folder: Path) -> list[Path]:
    below = [entry for entry in folder.iterdir() if entry.is_dir() and SPLIT_WORD.search(entry.name.lower())]
    return [path for place in (folder, *below) for path in place.glob("*.tar") if path.name[0] != "."]


def _by_split(paths: list[Path]) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(paths):
        word = SPLIT_WORD.search(path.stem.lower()) or SPLIT_WORD.search(path.parent.name.lower())
        if word:
            found.setdefault(word[1], []).append(path)
    return found


def _matches(pattern: str) -> list[str]:
    """Files of a pattern with {000..009}, {a,b}, * and ?; a name written out in full must be there."""
    found: list[str] = []
    for name in expand_braces(pattern):
        matching = [name] if Path(name).is_file() else sorted(glob.glob(name))
        if not matching:
            raise InputError(f"no shard at '{name}' (from '{pattern}'); check the pattern")
        found += matching
    return list(dict.fromkeys(found))


def expand_braces(pattern: str) -> list[str]:
    """`a-{08..10}` to a-08, a-09, a-10 and `{b,c}` to b, c; as often as there are braces."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    limits = RANGE.fullmatch(match[1])
    if limits is None:
        choices = match[1].split(",")
    else:
        first, last = int(limits[1]), int(limits[2])
        if not first <= last < first + MOST_FILES:
            raise InputError(
                f"{match[0]} in '{pattern}' cannot be used; a range goes up, by at most {MOST_FILES:,} files"
            )
        choices = [f"{number:0{len(limits[1])}d}" for number in range(first, last + 1)]
    rest = expand_braces(pattern[match.end() :])
    if len(choices) * len(rest) > MOST_FILES:
        raise InputError(f"'{pattern}' stands for more than {MOST_FILES:,} files")
    return [pattern[: match.start()] + choice + tail for choice in choices for tail in rest]


LAYOUT = Layout(
    name="tar shards",
    example="DIR/train-000000.tar, DIR/val-000000.tar, ... or a pattern such as 'DIR/{train,val}-{000..009}.tar'",
    splits=shard_splits,
    open_split=lambda request: ShardSet(request.data, request.split),
    order=40,
)
