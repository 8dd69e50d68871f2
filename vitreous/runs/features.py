"""Pooled features of many pictures as shards of files, and all shards of a folder as one array.

    features = vitreous.load_features("features")
    features.array[17], features.names[17], features.labels[17]
    near = features.array @ query                      # reads one shard after the other, never all at once

A safetensors shard holds `features` (N, C) float32 and `labels` (N), numbers in its own list of classes and -1 for
unknown; names and classes are JSON in its header, with checksums that are compared when a shard is opened. A Parquet
shard has the columns name, label and features, and checksums of its own.

Shapes: N pictures, C features.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from vitreous.data.image_set import ImageSet
from vitreous.data.many_pictures import class_name
from vitreous.errors import InputError, printable
from vitreous.files.reading import parse_json, reading
from vitreous.runs.result_shards import NOTE, ResultShards, Share, read_note
from vitreous.runs.streaming import PictureOutcome

FEATURES = "features"  # what shards are called, and what is in them
ENDINGS = {"safetensors": ".safetensors", "parquet": ".parquet"}
NO_NUMBERS = np.empty(0, np.float32)
EMBED_AGAIN = "remove it and run the same vitreous embed again, which writes it alone"
KEPT_MAPS, KEPT_TABLES = 256, 2  # shards that stay open: files mapped into memory, or tables that are in it


class FeatureShard(NamedTuple):
    """What one shard holds."""

    rows: NDArray[np.float32]  # (N, C)
    names: list[str]
    labels: list[str | None]


# ---- writing -----------------------------------------------------------------------------------------------------


def collect(images: ImageSet, width: int, outcomes: Iterator[PictureOutcome]) -> FeatureShard:
    """Of the pictures that could be read."""
    read = [outcome for outcome in outcomes if outcome.error is None]
    rows = np.stack([outcome.answer for outcome in read]) if read else np.empty((0, width), np.float32)
    labels = [class_name(images, outcome.source.number) for outcome in read]
    return FeatureShard(rows, [outcome.source.name for outcome in read], labels)


def write_safetensors(file: IO[bytes], shard: FeatureShard) -> None:
    classes = sorted({label for label in shard.labels if label is not None})
    number = {name: place for place, name in enumerate(classes)}
    labels = np.array([-1 if label is None else number[label] for label in shard.labels], np.int64)
    told = {"names": json.dumps(shard.names), "classes": json.dumps(classes)}
    told |= {"features_sha256": _digest(shard.rows), "labels_sha256": _digest(labels, told["names"], told["classes"])}
    file.write(save({"features": shard.rows, "labels": labels}, metadata=told))


def _digest(array: NDArray[Any], *texts: str) -> str:
    """safetensors does not notice a flipped bit, and Parquet none in what says of which types its columns are."""
    total = hashlib.sha256(np.ascontiguousarray(array).data)
    for text in texts:
        total.update(text.encode())
    return total.hexdigest()


def _require(digest: str, told: Mapping[str, str], name: str) -> None:
    if told.get(name) != digest:
        raise ValueError("its content is not what was written")


def write_parquet(file: IO[bytes], shard: FeatureShard) -> None:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    count, width = shard.rows.shape
    rows = pa.FixedSizeListArray.from_arrays(pa.array(shard.rows.reshape(-1), pa.float32()), width)
    # Names of files need not be Unicode, but these columns are.
    texts = [[None if text is None else printable(text) for text in column] for column in (shard.names, shard.labels)]
    names, labels = (pa.array(column, pa.string()) for column in texts)
    told = {"features_sha256": _digest(shard.rows), "texts_sha256": _digest(NO_NUMBERS, repr(texts))}
    table = pa.table({"name": names, "label": labels, "features": rows[:count]}, metadata=told)
    write_table(table, file, write_page_checksum=True)


WRITERS = {"safetensors": write_safetensors, "parquet": write_parquet}


# ---- reading -----------------------------------------------------------------------------------------------------


class FeatureArray:
    """The rows of all shards as an array (N, C) of which only what is asked for is read."""

    dtype = np.dtype(np.float32)
    ndim = 2

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        mapped = self.paths[0].suffix == ENDINGS["safetensors"]
        self._rows = lru_cache(KEPT_MAPS if mapped else KEPT_TABLES)(_rows)
        shapes = [_shape(path) for path in self.paths]
        widths = {shape[1] for shape in shapes if shape[0]} or {shapes[0][1]}
        if len(widths) != 1:
            where = self.paths[0].parent
            raise InputError(f"the shards in {where} hold features of {sorted(widths)} numbers; embed again")
        self._ends = list(accumulate(count for count, _ in shapes))
        self.shape = (self._ends[-1], widths.pop())

    def __len__(self) -> int:
        return self.shape[0]

    def parts(self) -> Iterator[NDArray[np.float32]]:
        """Shard after shard."""
        return (self._rows(path) for path in self.paths)

    def __getitem__(self, index: Any) -> NDArray[np.float32]:
        """By a number, a slice, a list of numbers or a mask, as of NumPy's arrays; of a pair, then by columns."""
        if isinstance(index, tuple):
            first, *rest = index
            taken = self[first]
            return taken[(slice(None),) * (taken.ndim - 1) + tuple(rest)]
        places = np.arange(len(self))[index]  # refuses what lies outside
        if places.ndim == 0:
            return self._row(int(places))
        found = np.empty((len(places), self.shape[1]), np.float32)
        owner = np.searchsorted(self._ends, places, side="right")
        for number in np.unique(owner):
            start = self._ends[number - 1] if number else 0
            found[owner == number] = self._rows(self.paths[number])[places[owner == number] - start]
        return found

    def _row(self, place: int) -> NDArray[np.float32]:
        number = bisect_right(self._ends, place)
        return np.array(self._rows(self.paths[number])[place - (self._ends[number - 1] if number else 0)])

    def __matmul__(self, other: Any) -> NDArray[Any]:
        return np.concatenate([part @ other for part in self.parts()])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole = np.concatenate(list(self.parts()))
        return whole if dtype is None else whole.astype(dtype)


class FeatureSet:
    """What `vitreous embed` wrote to a folder."""

    def __init__(self, shards: ResultShards, note: dict[str, Any]) -> None:
        self.shards, self.model, self.note = shards, str(note.get("model")), note
        self.array = FeatureArray([shards.path(number) for number in range(shards.count)])

    def __len__(self) -> int:
        return len(self.array)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "pictures": len(self),
            "width": self.array.shape[1],
            "files": [str(path) for path in self.array.paths],
        }

    @cached_property
    def names(self) -> list[str]:
        """Of the pictures, one for each row of the array."""
        return [name for path in self.array.paths for name in _told(path)[0]]

    @cached_property
    def labels(self) -> list[str | None]:
        """What the data call the pictures' classes; None where they do not know."""
        return [label for path in self.array.paths for label in _told(path)[1]]


def load_features(folder: str | Path) -> FeatureSet:
    """Names, labels and features of pictures, as `vitreous embed` wrote them; rows are read when they are used."""
    folder = Path(folder)
    if not (folder / NOTE).is_file():
        raise InputError(f"'{folder}' holds no features ({NOTE} is not there); write some with: vitreous embed")
    note = read_note(folder)
    kind, ending, data, size = (note.get(key) for key in ("kind", "ending", "data", "shard_size"))
    pictures = data.get("pictures") if isinstance(data, dict) else None
    if kind != FEATURES or ending not in ENDINGS.values() or not _positive(pictures) or not _positive(size):
        raise InputError(f"'{folder}' holds {kind}, not features that can be read; write some with: vitreous embed")
    shards = ResultShards(folder, FEATURES, str(ending), int(pictures), int(size), Share())  # type: ignore[arg-type]
    missing = shards.missing(range(shards.count))
    if missing:
        raise InputError(
            f"{len(missing)} of the {shards.count} shards in '{folder}' are missing, the first is "
            f"{shards.path(missing[0]).name}; run the same vitreous embed again, which writes these alone"
        )
    return FeatureSet(shards, note)


def _positive(value: Any) -> bool:
    return isinstance(value, int) and value > 0


def _shape(path: Path) -> tuple[int, int]:
    with reading(str(path), remedy=EMBED_AGAIN):
        if path.suffix == ENDINGS["parquet"]:
            from pyarrow.parquet import ParquetFile

            header = ParquetFile(path)
            return header.metadata.num_rows, header.schema_arrow.field("features").type.list_size
        with safe_open(path, "np") as file:
            count, width = file.get_slice("features").get_shape()
            return count, width


def _rows(path: Path) -> NDArray[np.float32]:
    """The rows of a shard: where they lie in the file, or those of a table."""
    with reading(str(path), remedy=EMBED_AGAIN):
        return _table_rows(path) if path.suffix == ENDINGS["parquet"] else _mapped_rows(path)


def _table_rows(path: Path) -> NDArray[np.float32]:
    from pyarrow.parquet import read_table

    table = read_table(path, columns=["features"], page_checksum_verification=True)
    column = table.column("features")
    rows = column.combine_chunks().flatten().to_numpy().reshape(len(column), -1)
    _require(_digest(rows), _table_notes(table), "features_sha256")
    return rows


def _table_notes(table: Any) -> dict[str, str]:
    return {
        key.decode(errors="replace"): text.decode(errors="replace")
        for key, text in (table.schema.metadata or {}).items()
    }


def _mapped_rows(path: Path) -> NDArray[np.float32]:
    shape = _shape(path)  # safetensors has checked the header
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        start = 8 + length + parse_json(file.read(length))["features"]["data_offsets"][0]
    rows = np.memmap(path, np.float32, "r", start, shape) if shape[0] else np.empty(shape, np.float32)
    with safe_open(path, "np") as file:
        _require(_digest(rows), file.metadata(), "features_sha256")
    return rows


def _told(path: Path) -> tuple[list[str], list[str | None]]:
    """Names and labels of a shard."""
    with reading(str(path), remedy=EMBED_AGAIN):
        if path.suffix == ENDINGS["parquet"]:
            from pyarrow.parquet import read_table

            table = read_table(path, columns=["name", "label"], page_checksum_verification=True)
            texts = [table.column("name").to_pylist(), table.column("label").to_pylist()]
            _require(_digest(NO_NUMBERS, repr(texts)), _table_notes(table), "texts_sha256")
            return texts[0], texts[1]
        with safe_open(path, "np") as file:
            told, labels = file.metadata(), file.get_tensor("labels")
        _require(_digest(labels, told["names"], told["classes"]), told, "labels_sha256")
        names, classes = parse_json(told["names"]), parse_json(told["classes"])
        return names, [None if label < 0 else classes[label] for label in labels.tolist()]
