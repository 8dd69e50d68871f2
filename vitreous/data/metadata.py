"""What else is known about pictures: `metadata.csv` or `metadata.jsonl`, a row for each picture.

    file_name,place,camera            {"file_name": "cat/1.jpg", "place": "garden", "camera": 2}
    cat/1.jpg,garden,2
    dog/7.jpg,street,

`file_name` (`img_filename` and `filename` will do) is a path from the file's own folder, which may be the data's
folder, that of a split, or one between them; the file nearest to the pictures counts. It is read when an attribute is
first asked for: whoever does not need it is not stopped by its faults. A picture without a row, or with an empty cell,
has no value.
"""

import json
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from vitreous.data.image import ImageError
from vitreous.data.image_set import ImageSet, Wrapped
from vitreous.errors import InputError
from vitreous.files.limits import MAX_METADATA_BYTES, MAX_METADATA_COLUMNS
from vitreous.files.reading import excerpt, parse_csv, parse_json, read_text, reading

METADATA_FILE = "metadata.csv"
METADATA_FILES = (METADATA_FILE, "metadata.jsonl")
NAME_COLUMNS = (
    "file_name",
    "img_filename",
    "filename",
)  # Hugging Face's imagefolder, Waterbirds, and what people write

AttributeValues = Mapping[str, str]


class MetadataRows(NamedTuple):
    columns: tuple[str, ...]  # without that of the names
    rows: dict[str, AttributeValues]  # path below the file's folder -> values; empty ones are left out


class WithMetadata(Wrapped):
    """An image set with attributes from a file."""

    def __init__(self, images: ImageSet, file: Path) -> None:
        super().__init__(images)
        self.metadata_file = file

    @property
    def attribute_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._known.columns

    def attributes(self, index: int) -> AttributeValues:
        return self._known.rows.get(self._keys[index], {})

    def fitting(self) -> set[str]:
        """Names in the file that are those of pictures."""
        return self._known.rows.keys() & set(self._keys)

    def listed(self) -> set[str]:
        """All names in the file."""
        return set(self._known.rows)

    @cached_property
    def _keys(self) -> list[str]:
        """What a row for each picture is called."""
        folder, rows = f"{self.metadata_file.parent.as_posix().removesuffix('/')}/", self._known.rows
        found, files = [], in_files(self)
        for index in range(len(self)):
            name, stored = self.name(index), self.encoded(index) if files else None
            below = stored.as_posix().removeprefix(folder) if isinstance(stored, Path) else name
            found.append(below if below in rows or name not in rows else name)
        if found and not any(key in rows for key in found):
            said = f"its first row is for {excerpt(next(iter(rows)))}" if rows else "it has no row"
            raise InputError(
                f"{self.metadata_file} is about none of the {len(found)} pictures: {said}, and the first picture is "
                f"{excerpt(found[0])}; write paths from the file's own folder"
            )
        return found

    @cached_property
    def _known(self) -> MetadataRows:
        return read_metadata(self.metadata_file)


def with_metadata(images: ImageSet, root: Path) -> ImageSet:
    """The images with the attributes that a file beside them tells; as they are if there is none."""
    for folder in _folders(images, root):
        for name in METADATA_FILES:
            if (folder / name).is_file():
                return WithMetadata(images, folder / name)
    return images


def _folders(images: ImageSet, root: Path) -> Iterator[Path]:
    """Where a file may be: from the folder that holds all pictures up to that of the data."""
    ends = [images.encoded(index) for index in (0, len(images) - 1)] if in_files(images) else []
    inner = Path(os.path.commonpath([file.parent for file in ends if isinstance(file, Path)])) if ends else root
    if inner.is_relative_to(root):
        yield from (folder for folder in (inner, *inner.parents) if folder != root and folder.is_relative_to(root))
    yield root


def in_files(images: ImageSet) -> bool:
    """Whether each picture is a file of its own."""
    try:
        return len(images) > 0 and not images.file_lengths and isinstance(images.encoded(0), Path)
    except ImageError:  # whoever wants the picture is told what is wrong with it
        return False


def read_metadata(file: Path) -> MetadataRows:
    text = read_text(file, MAX_METADATA_BYTES)
    with reading(str(file), remedy="correct the file"):
        rows = _json_rows(text) if file.suffix == ".jsonl" else _csv_rows(text)
        columns: dict[str, None] = {}
        found: dict[str, AttributeValues] = {}
        same: dict[str, str] = {}  # one copy of every value: there are few
        for line, row in rows:
            column = next((name for name in NAME_COLUMNS if name in row), None)
            if column is None:
                raise ValueError(
                    f"line {line} has no column {' or '.join(NAME_COLUMNS)}, which names the picture; it has: "
                    f"{', '.join(row) or 'none'}"
                )
            name = row.pop(column).strip().replace("\\", "/").removeprefix("./")
            columns |= dict.fromkeys(row)
            if len(columns) > MAX_METADATA_COLUMNS:
                raise ValueError(f"it has more than {MAX_METADATA_COLUMNS:,} columns")
            known = {key: same.setdefault(value, value) for key, value in row.items() if value}
            if not name:
                raise ValueError(f"line {line} names no picture")
            if found.setdefault(name, known) != known:
                raise ValueError(f"line {line} is a second row about {excerpt(name)}, with other values")
    return MetadataRows(tuple(columns), found)


def _csv_rows(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    header, rows = parse_csv(text)
    if not set(header) & set(NAME_COLUMNS):  # also of a file without rows
        yield 1, dict.fromkeys(header, "")
    yield from rows


def _json_rows(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        row = parse_json(line)
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is {excerpt(row)}, not an object in braces")
        # Lists and objects are no attributes: boxes, for instance, which Hugging Face keeps here too.
        plain = {str(key): value for key, value in row.items() if not isinstance(value, list | dict)}
        yield number, {key: _text(value) for key, value in plain.items()}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value.strip() if isinstance(value, str) else json.dumps(value)
