"""A table of pictures: a CSV file with a row for each picture, or for each object in one.

    path,label,split              path,x1,y1,x2,y2,label
    cats/1.jpg,cat,train          street.jpg,10,20,110,220,person
    dogs/7.jpg,dog,val            street.jpg,300,40,380,90,car
                                  field.jpg,,,,,

The first line names the columns, in any order; TABLE_COLUMNS lists what they may be called. Paths are from the file's
own folder. Without the column `split`, a share is held out. Further columns are attributes of the pictures.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from vitreous.data.image import SUFFIXES
from vitreous.data.image_set import NAMES_OF_SPLITS, EncodedSet, digest, file_bytes, require_split
from vitreous.data.metadata import NAME_COLUMNS
from vitreous.errors import InputError
from vitreous.files.limits import MAX_METADATA_BYTES, MAX_METADATA_COLUMNS
from vitreous.files.reading import excerpt, parse_csv, problem_of_path, read_text, reading

SEPARATORS = {".csv": ",", ".tsv": "\t"}
BOX_COLUMNS = ("x1", "y1", "x2", "y2")
TABLE_COLUMNS = {  # what we call them -> what people do, the first that is there
    "path": ("path", *NAME_COLUMNS, "file", "image", "image_path", "filepath"),
    "label": ("label", "labels", "class", "category"),
    "split": ("split", "set", "subset"),
    "value": ("value", "score", "target"),
    **{name: (name, other) for name, other in zip(BOX_COLUMNS, ("xmin", "ymin", "xmax", "ymax"), strict=True)},
}


class TableRow(NamedTuple):
    line: int
    path: str  # from the table's folder
    split: str  # as the table calls it; empty where it has no such column
    cells: Mapping[str, str]  # by our name of a column, or its own


@dataclass(frozen=True)
class PictureTable:
    file: Path
    columns: tuple[str, ...]  # as the cells are called
    rows: tuple[TableRow, ...]

    @cached_property
    def splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.split for row in self.rows if row.split))

    @property
    def attribute_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in TABLE_COLUMNS)

    def has(self, *columns: str) -> bool:
        return set(columns) <= set(self.columns)

    def rows_of(self, split: str) -> list[TableRow]:
        """Those of one split; all of a table without splits."""
        if not self.splits:
            return list(self.rows)
        name = require_split(split, self.splits, f"'{self.file}'")
        return [row for row in self.rows if row.split == name]

    def picture(self, row: TableRow) -> Path:
        return self.file.parent / row.path

    def require_pictures(self, rows: Sequence[TableRow], *, follow: bool, strict: bool) -> None:
        """Refuse paths that lead elsewhere and, if `strict`, files that are not there."""
        for row in rows:
            if problem := problem_of_path(row.path, follow=follow):
                raise self.fault(row, f"names {excerpt(row.path)}, which {problem}")
        missing = [row for row in rows if not self.picture(row).is_file()] if strict else []
        if missing:
            others = f" ({len(missing)} of {len(rows)} rows name such files)" if len(missing) > 1 else ""
            raise self.fault(
                missing[0],
                f"names {excerpt(missing[0].path)}, and there is no such file in '{self.file.parent}'{others}; paths "
                "are from the folder of the table: correct them, or remove the rows",
            )

    def fault(self, row: TableRow, problem: str) -> InputError:
        return InputError(f"{self.file}, line {row.line} {problem}")


def find_table(data: str) -> PictureTable | None:
    """The table of this name; None if it is none by its ending, or not there."""
    file = Path(data).expanduser()
    if file.suffix.lower() not in SEPARATORS or not file.is_file():
        return None
    info = file.stat()
    return _read(file, info.st_size, info.st_mtime_ns)


def open_table(data: str) -> PictureTable:
    table = find_table(data)
    if table is None:
        raise InputError(f"there is no table '{data}'; give a file that ends in {' or '.join(SEPARATORS)}")
    return table


@lru_cache(maxsize=4)
def _read(file: Path, size: int, changed: int) -> PictureTable:
    """The time of the last change keeps it true: splits are opened one after the other, and layouts look in turn."""
    text = read_text(file, MAX_METADATA_BYTES)
    with reading(str(file), remedy="correct the file"):
        header, rows = parse_csv(text, SEPARATORS[file.suffix.lower()])
        ours = _our_names(header)
        found = tuple(_row(line, {ours.get(name, name): cell for name, cell in cells.items()}) for line, cells in rows)
        if not found:
            raise ValueError("it has no rows below the names of its columns")
    return PictureTable(file, tuple(ours.get(name, name) for name in header), found)


def _our_names(header: Sequence[str]) -> dict[str, str]:
    """Name of a column -> what we call it; a ValueError where none names the pictures."""
    if len(header) > MAX_METADATA_COLUMNS:
        raise ValueError(f"it has more than {MAX_METADATA_COLUMNS:,} columns")
    lower = {name.lower(): name for name in reversed(header)}
    found = {
        name: next((lower[other] for other in others if other in lower), None) for name, others in TABLE_COLUMNS.items()
    }
    if found["path"] is None:
        accepted = (
            f"it must name the columns, as path,label,split; pictures are called {' or '.join(TABLE_COLUMNS['path'])}"
        )
        if any(cell.lower().endswith(SUFFIXES) for cell in header):
            raise ValueError(f"its first line is about a picture; {accepted}")
        if len(header) == 1 and ";" in header[0]:
            raise ValueError("its columns are separated by semicolons; save it with commas")
        raise ValueError(f"its first line is {excerpt(','.join(header))}; {accepted}")
    return {given: name for name, given in found.items() if given is not None}


def _row(line: int, cells: dict[str, str]) -> TableRow:
    path = cells["path"].replace("\\", "/").removeprefix("./")
    if not path:
        raise ValueError(f"line {line} names no picture")
    split = cells.get("split", "").lower()
    if "split" in cells and split not in NAMES_OF_SPLITS:
        raise ValueError(f"line {line} has the split {excerpt(split)}; accepted: {', '.join(NAMES_OF_SPLITS)}")
    return TableRow(line, path, split, cells)


class TablePictures(EncodedSet):
    """The pictures of one split of a table, with a target each."""

    def __init__(
        self, table: PictureTable, rows: Sequence[TableRow], classes: tuple[str, ...], targets: Iterable[dict[str, Any]]
    ) -> None:
        """`targets` are what is to be learnt from each row."""
        self.table, self.rows, self.classes = table, rows, classes
        self.targets = tuple(targets)
        self.attribute_names = table.attribute_names

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        return self.rows[index].path

    def target(self, index: int) -> dict[str, Any]:
        return self.targets[index]

    def encoded(self, index: int) -> Path:
        return self.table.picture(self.rows[index])

    def attributes(self, index: int) -> Mapping[str, str]:
        cells = self.rows[index].cells
        return {name: cells[name] for name in self.attribute_names if cells[name]}

    @cached_property
    def fingerprint(self) -> str:
        """Changes with any target, and when files are added, removed, renamed or change their length."""
        return digest(
            f"{row.path}\0{target}\0{file_bytes(self.table.picture(row))}"
            for row, target in zip(self.rows, self.targets, strict=True)
        )


def one_row_each(table: PictureTable, rows: Sequence[TableRow], column: str, remedy: str) -> list[TableRow]:
    """The rows without repetitions; two that say different things about a picture are refused."""
    first: dict[str, TableRow] = {}
    for row in rows:
        known = first.setdefault(row.path, row)
        if known.cells[column] != row.cells[column]:
            raise table.fault(
                row,
                f"says {excerpt(row.cells[column])} about {excerpt(row.path)}, of which line {known.line} says "
                f"{excerpt(known.cells[column])}; {remedy}",
            )
    return list(first.values())
