"""A class for each picture, in a table: `photos.csv` with the columns path, label and perhaps split."""

import re
from collections.abc import Sequence

from vitreous.data.layouts.base import Layout, Request
from vitreous.data.layouts.folder import in_order
from vitreous.data.picture_table import PictureTable, TablePictures, TableRow, find_table, one_row_each, open_table
from vitreous.errors import InputError
from vitreous.files.limits import MAX_CLASS_NAME_CHARS, MAX_DATA_CLASSES
from vitreous.files.reading import excerpt

LABEL_SEPARATOR = ";"  # between the labels of a picture that has several
ANY_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
WHOLE_NUMBER = re.compile(r"[-+]?\d+")


def label_table(data: str) -> PictureTable | None:
    """The table, if it has a column of labels and none of boxes."""
    table = find_table(data)
    return table if table is not None and table.has("label") and not table.has("x1") else None


def _splits(data: str) -> tuple[str, ...] | None:
    """Several labels in a cell, or fractions, are for other tasks than classification."""
    table = label_table(data)
    if table is None:
        return None
    labels = [row.cells["label"] for row in table.rows]
    fractions = all(map(ANY_NUMBER.fullmatch, labels)) and not all(map(WHOLE_NUMBER.fullmatch, labels))
    return None if fractions or any(LABEL_SEPARATOR in label for label in labels) else table.splits


def require_labels(table: PictureTable, rows: Sequence[TableRow]) -> None:
    """Refuse cells that are empty or too long, and a column that holds numbers and names."""
    for row in rows:
        label = row.cells["label"]
        if not label or len(label) > MAX_CLASS_NAME_CHARS:
            raise table.fault(
                row, f"has {'no' if not label else 'too long a'} label; write the class, or remove the row"
            )
    numbers = [bool(WHOLE_NUMBER.fullmatch(row.cells["label"])) for row in rows]
    if any(numbers) and not all(numbers):
        number, name = rows[numbers.index(True)], rows[numbers.index(False)]
        raise InputError(
            f"{table.file}, column label holds labels of two kinds: numbers (line {number.line}: "
            f"{excerpt(number.cells['label'])}) and names (line {name.line}: {excerpt(name.cells['label'])}); "
            "write all of them in one way"
        )


def known_classes(table: PictureTable, names: set[str]) -> tuple[str, ...]:
    """The same for all splits, so that one that a split lacks shifts nothing."""
    if len(names) > MAX_DATA_CLASSES:
        raise InputError(f"{table.file} has {len(names):,} different labels; at most {MAX_DATA_CLASSES:,} are read")
    return tuple(in_order(names))


def open_label_table(request: Request) -> TablePictures:
    table = open_table(request.data)
    require_labels(table, table.rows)
    rows = table.rows_of(request.split)
    table.require_pictures(rows, follow=request.follow, strict=request.strict)
    if request.strict:
        rows = one_row_each(table, rows, "label", "give one of them, or both as a;b in one row for --task multilabel")
    classes = known_classes(table, {row.cells["label"] for row in table.rows})
    numbers = {name: number for number, name in enumerate(classes)}
    return TablePictures(table, rows, classes, ({"labels": numbers[row.cells["label"]]} for row in rows))


LAYOUT = Layout(
    name="table of labels",
    example="FILE.csv with the columns path,label and perhaps split",
    splits=_splits,
    open_split=open_label_table,
    order=45,
)
