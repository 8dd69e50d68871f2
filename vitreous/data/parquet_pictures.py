"""Pictures in Parquet files, as bytes in a column; read with pyarrow, which comes with the extra `parquet`.

The column holds binary values, or what Hugging Face's `datasets` writes: {bytes, path}. A column of labels, numbers or
names, is used where there is one. Rows are read by row groups, one after the other: well suited for working through all
pictures once, and badly for a random order, which is why nothing is trained from these files.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.data.image import ImageError
from vitreous.data.image_set import EncodedSet, digest
from vitreous.errors import InputError
from vitreous.files.limits import MAX_DATA_CLASSES
from vitreous.files.reading import reading

PICTURE_COLUMNS = ("image", "img", "picture", "photo", "jpg", "png", "bytes", "image_bytes")  # preferred among several
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "cls", "category")
KEPT_ROW_GROUPS = 4  # in memory: threads that work side by side are seldom further apart


class ParquetPictures(EncodedSet):
    """The rows of some files, in order; a picture's name is its file and the number of its row: a.parquet/17."""

    def __init__(self, files: Sequence[Path]) -> None:
        import pyarrow.parquet  # noqa: F401  (a missing package is told before the work)

        self.files = list(files)
        self._tables: OrderedDict[tuple[int, int], Any] = OrderedDict()
        self._lock = threading.Lock()
        headers = [_opened(path) for path in self.files]
        self._picture = _picture_column(headers[0].schema_arrow, self.files[0])
        self._label = next((name for name in LABEL_COLUMNS if name in headers[0].schema_arrow.names), None)
        self.file_lengths = tuple(header.metadata.num_rows for header in headers)
        rows = [
            [header.metadata.row_group(group).num_rows for group in range(header.num_row_groups)] for header in headers
        ]
        self._groups = [(file, group) for file, counts in enumerate(rows) for group in range(len(counts))]
        self._ends = np.cumsum([count for counts in rows for count in counts], dtype=np.int64)
        self._file_starts = np.cumsum([0, *self.file_lengths])
        self.classes, self._labels = self._read_labels(headers)

    def __len__(self) -> int:
        return int(self._file_starts[-1])

    def name(self, index: int) -> str:
        file = int(np.searchsorted(self._file_starts, index, side="right")) - 1
        return f"{self.files[file].as_posix()}/{index - self._file_starts[file]}"

    def target(self, index: int) -> dict[str, Any]:
        return {"labels": int(self._labels[index])} if self.classes and self._labels[index] >= 0 else {}

    def encoded(self, index: int) -> bytes:
        group = int(np.searchsorted(self._ends, index, side="right"))
        start = int(self._ends[group - 1]) if group else 0
        stored = self._row_group(*self._groups[group])[index - start].as_py()
        content = stored.get("bytes") if isinstance(stored, dict) else stored
        if not content:
            raise ImageError(f"image {self.name(index)!r} is empty (the row holds no bytes)")
        return content

    def _row_group(self, file: int, group: int) -> Any:
        """The column of pictures of one row group."""
        with self._lock:
            if (file, group) not in self._tables:
                while len(self._tables) >= KEPT_ROW_GROUPS:
                    self._tables.popitem(last=False)
                with reading(f"{self.files[file]}"):
                    table = _opened(self.files[file]).read_row_group(group, columns=[self._picture])
                self._tables[file, group] = table.column(self._picture)
            self._tables.move_to_end((file, group))
            return self._tables[file, group]

    def _read_labels(self, headers: Sequence[Any]) -> tuple[tuple[str, ...], Any]:
        """Names of the classes, and for each row its number, or -1 where it has none."""
        if self._label is None:
            return (), np.empty(0, np.int64)
        columns = []
        for path, header in zip(self.files, headers, strict=True):
            with reading(str(path)):
                columns += header.read(columns=[self._label]).column(self._label).to_pylist()
        names = _stored_names(headers[0].schema_arrow, self._label)
        if names and all(label is None or (isinstance(label, int) and label < len(names)) for label in columns):
            return names, np.array([-1 if label is None else label for label in columns])
        written = {str(label): None for label in columns if isinstance(label, int | str)}
        if len(written) > MAX_DATA_CLASSES:  # a number for each picture is no class
            return (), np.empty(0, np.int64)
        classes = tuple(sorted(written, key=lambda name: (len(name), name) if name.isdecimal() else (0, name)))
        number = {name: place for place, name in enumerate(classes)}
        return classes, np.array([number.get(str(label), -1) for label in columns])

    @cached_property
    def fingerprint(self) -> str:
        """Changes when files are added, removed, renamed, or change their length."""
        return digest(f"{path.name}\0{path.stat().st_size}" for path in self.files)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_lock", "_tables")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.Lock(), "_tables": OrderedDict()}


def _opened(path: Path) -> Any:
    from pyarrow.parquet import ParquetFile

    with reading(str(path)):
        return ParquetFile(path)


def _picture_column(schema: Any, path: Path) -> str:
    from pyarrow import types

    def holds_bytes(kind: Any) -> bool:
        if types.is_struct(kind):
            return kind.get_field_index("bytes") >= 0 and holds_bytes(kind.field("bytes").type)
        return types.is_binary(kind) or types.is_large_binary(kind)

    found = [field.name for field in schema if holds_bytes(field.type)]
    preferred = [name for name in PICTURE_COLUMNS if name in found]
    if len(found) != 1 and not preferred:
        there = ", ".join(f"{field.name} ({field.type})" for field in schema)
        wanted = " or ".join(PICTURE_COLUMNS[:2])
        raise InputError(f"{path} has the columns {there}; one with the bytes of pictures is needed, called {wanted}")
    return preferred[0] if preferred else found[0]


def _stored_names(schema: Any, column: str) -> tuple[str, ...]:
    """Names of the classes that `datasets` has stored for a column of numbers."""
    try:
        stored = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
        return tuple(stored) if all(isinstance(name, str) for name in stored) else ()
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()
