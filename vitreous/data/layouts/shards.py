"""Tar shards as WebDataset writes them: `train-000000.tar`, `train-000001.tar`, ..., `val-000000.tar`.

A sample is what shares a name up to its first dot: `0017.jpg` and `0017.cls`, or `0017.png` and `0017.json`. Nothing is
streamed: an index says where each sample is, and one read at that offset gets it. It is built once by reading the
shards' headers and labels, and stored beside the shards, or in the user's cache folder if that place is not writable. A
shard whose length or modification time differs is indexed again.

So shards are a set like any other, with the same promises about order, workers, ranks and resuming. On a local disk
that also proved faster than streaming: with 12,000 JPEGs of 55 kB in 30 shards, tarfile streamed 6,700 a second from
memory and 2,500-4,700 from the disk; reads by index gave 80,000-125,000 and 5,500-8,500 in random order.
"""

import glob
import os
import re
import sys
import tarfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.data.image import SUFFIXES, ImageError
from vitreous.data.image_set import NAMES_OF_SPLITS, EncodedSet, digest, require_split
from vitreous.data.layouts.base import Layout, expanded
from vitreous.errors import InputError
from vitreous.files.limits import MAX_CLASS_NAME_CHARS, MAX_DATA_CLASSES, MAX_LABEL_BYTES, MAX_PATH_BYTES
from vitreous.files.reading import MACHINE_REMEDIES, is_text, parse_json, read_names, reading, reason_of, truncate
from vitreous.files.writing import atomic_file

SPLIT_WORD = re.compile(rf"(?:^|[^a-z])({'|'.join(sorted(NAMES_OF_SPLITS))})(?=[^a-z]|$)")
RANGE = re.compile(r"(\d+)\.\.(\d+)")
DIGITS = len(str(MAX_DATA_CLASSES))
MOST_FILES = 1_000_000  # that a pattern may stand for
OPEN_FILES = 64  # shards a process keeps open
MEMBER = re.compile(r"(?P<key>(?:.*/)?[^./][^./]*)\.(?P<kind>[^/]+)")
LABEL_KEYS = ("label", "cls", "class")  # of a sample's .json
LARGEST_INDEX = 8  # times the shards: the longest name of a sample takes as much here as its blocks in a shard
_TAR_BLOCK_BYTES = 512


class TarPictures(EncodedSet):
    """The pictures of some shards, with their labels where all of them have one."""

    def __init__(self, shards: Sequence[Path]) -> None:
        self.shards = list(shards)
        index = build_index(shards)
        self._keep(index, *_numbered(self.shards[0].parent, index.labels, index.labels))

    def _keep(self, index: "Index", classes: tuple[str, ...], labels: NDArray[np.int64]) -> None:
        self.classes, self._labels = classes, labels
        self._names, self._offsets, self._sizes = index.names, index.offsets, index.sizes
        self._shard = np.repeat(np.arange(len(self.shards)), index.counts)
        self.file_lengths = tuple(index.counts.tolist())

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        return f"{self._shard_name(index)}/{self._names[index].decode(errors='surrogateescape')}"

    def _shard_name(self, index: int) -> str:
        """As it was given: shards in several folders may be called the same."""
        return self.shards[self._shard[index]].as_posix()

    def target(self, index: int) -> dict[str, Any]:
        return {"labels": int(self._labels[index])} if self.classes else {}

    def encoded(self, index: int) -> bytes:
        try:
            file = _open_shard(self.shards[self._shard[index]], os.getpid(), threading.get_ident())
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


class ShardSet(TarPictures):
    """The samples of one split's shards; all of them have a label, unless they need none."""

    def __init__(self, data: str, split: str, *, labelled: bool = True) -> None:
        shards = find_shards(data)
        name = require_split(split, shards, f"'{data}'")
        self.shards = shards[name]
        # Labels count the same in every split, so all splits have a say in what the classes are.
        indices = {found: build_index(paths) for found, paths in shards.items()}
        for found, index in indices.items() if labelled else ():
            _require_labels(shards[found], index)
        written = np.concatenate([np.unique(index.labels) for index in indices.values()])
        self._keep(indices[name], *_numbered(self.shards[0].parent, written, indices[name].labels))

    def _shard_name(self, index: int) -> str:
        return self.shards[self._shard[index]].name


def _require_labels(shards: Sequence[Path], index: "Index") -> None:
    missing = np.flatnonzero(index.labels == b"")
    if len(missing):
        owner = np.repeat(np.arange(len(shards)), index.counts)
        number = owner[missing[0]]
        member = index.names[missing[0]].decode(errors="surrogateescape")
        raise InputError(
            f"{(owner[missing] == number).sum()} of the samples in shard '{shards[number]}' have no label (.cls, or "
            f".json with {' or '.join(LABEL_KEYS)}), e.g. {member.partition('.')[0]!r}; write it again"
        )


def _numbered(
    folder: Path, everyones: NDArray[np.bytes_], own: NDArray[np.bytes_]
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Names of the classes, and the number of each own label; of data that are not all labelled, none."""
    written = np.unique(everyones)
    if b"" in written:
        return (), np.full(len(own), -1)
    with reading(f"a label in the shards of '{folder}'", remedy="write labels as UTF-8"):
        labels = [label.decode() for label in written.tolist()]
    classes, number = _classes(folder, labels)
    return classes, np.array(number)[np.searchsorted(written, own)]


@lru_cache(OPEN_FILES)
def _open_shard(path: Path, process: int, thread: int) -> IO[bytes]:
    """Open in each process and thread anew: a file that two of them use would have one position for both."""
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
        return _by_split(shards_in(folder)) or None
    return find_shards(data) if names_shards(data) else None


def names_shards(data: str) -> bool:
    """Whether this is a shard, or a pattern of some."""
    return data.endswith(".tar") and (expanded(data).is_file() or bool(set("{*?[") & set(data)))


def find_shards(data: str) -> dict[str, list[Path]]:
    """Split -> shards, for a folder or a pattern."""
    folder = expanded(data)
    paths = shards_in(folder) if folder.is_dir() else [Path(name) for name in matching_files(str(folder))]
    found = _by_split(paths)
    if not found:
        raise InputError(
            f"none of the {len(paths)} shards of '{data}' says in its name which split it belongs to; call them "
            "train-000000.tar, val-000000.tar, ..., or put them in folders train/ and val/"
        )
    return found


def shards_in(folder: Path) -> list[Path]:
    below = [entry for entry in folder.iterdir() if entry.is_dir() and SPLIT_WORD.search(entry.name.lower())]
    return [path for place in (folder, *below) for path in place.glob("*.tar") if path.name[0] != "."]


def _by_split(paths: list[Path]) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(paths):
        word = SPLIT_WORD.search(path.stem.lower()) or SPLIT_WORD.search(path.parent.name.lower())
        if word:
            found.setdefault(word[1], []).append(path)
    return found


def matching_files(pattern: str) -> list[str]:
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


# ---- where the samples lie -------------------------------------------------------------------------------------


class Index(NamedTuple):
    """The samples of several shards, shard after shard, in the order in which they lie there."""

    counts: NDArray[np.int64]  # samples of each shard
    names: NDArray[np.bytes_]  # of the members with the pictures
    labels: NDArray[np.bytes_]  # as written in .cls or .json; empty where there is none
    offsets: NDArray[np.int64]  # where the pictures begin in their shard
    sizes: NDArray[np.int64]


def build_index(shards: Sequence[Path]) -> Index:
    """From the stored index as far as it is up to date, otherwise from the shards."""
    states = [path.stat() for path in shards]
    stamps = np.array([(state.st_size, state.st_mtime_ns) for state in states], np.int64).reshape(-1, 2)
    places = _index_files(shards)
    kept = next(filter(None, (_stored(place, stamps[:, 0]) for place in places)), None)
    fresh = np.zeros(len(shards), bool) if kept is None else (kept[0] == stamps).all(1)
    if kept is not None and fresh.all():
        return kept[1]
    print(f"indexing {(~fresh).sum()} of {len(shards)} shards; this happens once", file=sys.stderr, flush=True)
    parts = [
        _part(kept[1], number) if kept is not None and fresh[number] else _scan(path)
        for number, path in enumerate(shards)
    ]
    index = Index(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    for place in places:  # without a writable one, the shards are indexed again next time
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(place, unique=True) as file:
                np.savez_compressed(file, stamps=stamps, **index._asdict())
            break
    return index


# ---- one shard -------------------------------------------------------------------------------------------------


def _scan(path: Path) -> Index:
    with reading(f"shard '{path}'", remedy="copy or download it again"), open(path, "rb") as file:
        if file.read(2) == b"\x1f\x8b":
            raise InputError(f"shard '{path}' is compressed; unpack it (gunzip), so that single samples can be read")
        file.seek(0)
        pictures, labels = _members(path, file)
    missing = labels.keys() - pictures.keys()
    if missing:
        raise InputError(
            f"{len(missing)} of the samples in shard '{path}' have no picture ({', '.join(SUFFIXES)}), "
            f"e.g. {min(missing)!r}; write it again"
        )
    if not pictures:
        raise InputError(f"shard '{path}' holds no samples; remove it, or write it again")
    return Index(
        np.array([len(pictures)], np.int64),
        np.array([member.name.encode(errors="surrogateescape") for member in pictures.values()], np.bytes_),
        np.array([labels.get(key, b"") for key in pictures], np.bytes_),
        np.array([member.offset_data for member in pictures.values()], np.int64),
        np.array([member.size for member in pictures.values()], np.int64),
    )


def _members(path: Path, file: IO[bytes]) -> tuple[dict[str, tarfile.TarInfo], dict[str, bytes]]:
    """Key -> member with the picture, and key -> label."""
    pictures: dict[str, tarfile.TarInfo] = {}
    texts: dict[str, dict[str, bytes]] = {"cls": {}, "json": {}}
    end = 0
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            end = max(end, member.offset_data + -(-member.size // _TAR_BLOCK_BYTES) * _TAR_BLOCK_BYTES)
            match = MEMBER.fullmatch(member.name)
            if match is None or not member.isreg() or member.issparse():
                continue
            key, kind = match["key"], match["kind"].lower()
            if f".{kind}" in SUFFIXES:
                if len(os.fsencode(member.name)) > MAX_PATH_BYTES:
                    raise InputError(f"shard '{path}' holds a file with a name of {len(member.name):,} characters")
                if key in pictures:
                    raise InputError(f"shard '{path}' holds two pictures named {key!r}; write it again")
                pictures[key] = member
            elif kind in texts:
                texts[kind][key] = _text(path, file, member)
            archive.members = []  # type: ignore[attr-defined]  # tarfile remembers all it has seen
    _check_end(path, file, end)
    labels = {key: _from_json(path, key, text) for key, text in texts["json"].items()} | texts["cls"]
    for key, label in labels.items():
        if len(label) > MAX_CLASS_NAME_CHARS or not is_text(label.decode(errors="surrogateescape")):
            raise InputError(
                f"the label of {truncate(key)!r} in shard '{path}' is {truncate(repr(label))}; a number or a name in "
                f"UTF-8 of at most {MAX_CLASS_NAME_CHARS:,} bytes is accepted"
            )
    return pictures, labels


def _check_end(path: Path, file: IO[bytes], end: int) -> None:
    """tarfile takes a damaged header, and a file cut off, for the end of the archive."""
    size = file.seek(0, os.SEEK_END)
    file.seek(end)
    if end > size or file.read(_TAR_BLOCK_BYTES).strip(b"\0"):
        raise InputError(f"shard '{path}' is cut off or damaged at byte {min(end, size)}; copy or download it again")


def _text(path: Path, file: IO[bytes], member: tarfile.TarInfo) -> bytes:
    if member.size > MAX_LABEL_BYTES:
        raise InputError(f"{member.name!r} in shard '{path}' has {member.size:,} bytes, too many for a label")
    file.seek(member.offset_data)
    return file.read(member.size).strip()


def _from_json(path: Path, key: str, text: bytes) -> bytes:
    try:
        content = parse_json(text)
    except ValueError as reason:
        raise InputError(f"'{key}.json' in shard '{path}' is no JSON ({reason_of(reason)}); write it again") from reason
    if isinstance(content, dict) and not set(LABEL_KEYS) & set(content):
        return b""  # other things are known about the picture
    values = [content[name] for name in LABEL_KEYS if name in content] if isinstance(content, dict) else []
    if not values or not isinstance(values[0], int | str):
        raise InputError(
            f"'{key}.json' in shard '{path}' has no label; "
            f"a number or a name under {' or '.join(LABEL_KEYS)} is accepted"
        )
    with reading(f"the label of '{key}.json' in shard '{path}'", remedy="write it again"):
        return str(values[0]).encode()


# ---- the stored index --------------------------------------------------------------------------------------------


def _index_files(shards: Sequence[Path]) -> list[Path]:
    """Where the index of these shards may be, best place first."""
    folder = shards[0].parent
    beside = folder / f".vitreous-{digest(os.path.relpath(path, folder) for path in shards)[:12]}.npz"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitreous" / "shards"
    return [beside, cache / f"{digest(str(path.resolve()) for path in shards)[:24]}.npz"]


def _stored(place: Path, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], Index] | None:
    """(shards, 2) lengths and times of change, and the index; None if none is usable for shards of these lengths."""
    try:
        with np.load(place, allow_pickle=False) as file:
            if sum(info.file_size for info in file.zip.infolist()) > LARGEST_INDEX * (lengths.sum() + _TAR_BLOCK_BYTES):
                return None
            stamps, index = file["stamps"], Index(*(file[field] for field in Index._fields))
        return (stamps, index) if _whole(stamps, index, len(lengths)) else None
    except Exception:  # whatever a damaged one leads to: the shards are indexed again
        return None


def _whole(stamps: NDArray[Any], index: Index, shards: int) -> bool:
    """Whether an index is valid for these shards: anybody may have written it."""
    kinds = [array.dtype.kind for array in (stamps, *index)]
    if kinds != ["i", "i", "S", "S", "i", "i"] or any(array.ndim != 1 for array in index):
        return False
    if stamps.shape != (shards, 2) or len(index.counts) != shards or (index.counts < 1).any():
        return False
    if any(len(array) != sum(index.counts.tolist()) for array in index[1:]):
        return False
    lengths = np.repeat(stamps[:, 0], index.counts)
    within = (index.offsets >= 0) & (index.sizes >= 0) & (index.offsets <= lengths - index.sizes)
    return bool(within.all())


def _part(index: Index, number: int) -> Index:
    """The index of one shard by itself."""
    start, end = index.counts[:number].sum(), index.counts[: number + 1].sum()
    rest = {field: getattr(index, field)[start:end] for field in Index._fields[1:]}
    return Index(counts=index.counts[number : number + 1], **rest)


LAYOUT = Layout(
    name="tar shards",
    example="DIR/train-000000.tar, DIR/val-000000.tar, ... or a pattern such as 'DIR/{train,val}-{000..009}.tar'",
    splits=shard_splits,
    open_split=lambda request: ShardSet(request.data, request.split, labelled=request.labelled),
    order=40,
)
