"""Where the samples of tar shards lie, so that any one can be read without the others.

A sample is what shares a name up to its first dot: `0017.jpg` and `0017.cls`, or `0017.png` and `0017.json`. The index
is built once by reading the shards' headers and labels, and stored beside the shards, or in the user's cache folder if
that place is not writable. A shard whose length or modification time differs is indexed again.
"""

import os
import re
import sys
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.data.image import SUFFIXES
from vitreous.data.image_set import digest
from vitreous.errors import InputError
from vitreous.files.limits import MAX_CLASS_NAME_CHARS, MAX_LABEL_BYTES, MAX_PATH_BYTES
from vitreous.files.reading import is_text, parse_json, reading, reason_of, truncate
from vitreous.files.writing import atomic_file

MEMBER = re.compile(r"(?P<key>(?:.*/)?[^./][^./]*)\.(?P<kind>[^/]+)")
LABEL_KEYS = ("label", "cls", "class")  # of a sample's .json
LARGEST_INDEX = 8  # times the shards: the longest name of a sample takes as much here as its blocks in a shard
_TAR_BLOCK_BYTES = 512


class Index(NamedTuple):
    """The samples of several shards, shard after shard, in the order in which they lie there."""

    counts: NDArray[np.int64]  # samples of each shard
    names: NDArray[np.bytes_]  # of the members with the pictures
    labels: NDArray[np.bytes_]  # as written in .cls or .json
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
    for missing, what in (
        (pictures.keys() - labels.keys(), f"no label (.cls, or .json with {' or '.join(LABEL_KEYS)})"),
        (labels.keys() - pictures.keys(), f"no picture ({', '.join(SUFFIXES)})"),
    ):
        if missing:
            raise InputError(
                f"{len(missing)} of the samples in shard '{path}' have {what}, e.g. {min(missing)!r}; write it again"
            )
    if not pictures:
        raise InputError(f"shard '{path}' holds no samples; remove it, or write it again")
    return Index(
        np.array([len(pictures)], np.int64),
        np.array([member.name.encode(errors="surrogateescape") for member in pictures.values()], np.bytes_),
        np.array([labels[key] for key in pictures], np.bytes_),
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
