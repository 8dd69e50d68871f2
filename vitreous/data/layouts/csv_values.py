"""A number for each picture, in a table: path,value with perhaps split; `score`, `target` and `label` will do."""

import math

from vitreous.data.layouts.base import Layout, Request
from vitreous.data.layouts.csv_labels import ANY_NUMBER, label_table
from vitreous.data.picture_table import PictureTable, TablePictures, TableRow, find_table, one_row_each, open_table
from vitreous.files.reading import excerpt

VALUE = "value"  # as a model calls what it answers, whatever the column is called
LARGEST_NUMBER = 1e12  # beyond which squares of single precision say nothing


def value_column(data: str) -> str | None:
    """The column of numbers: one that is meant for them, or that of labels where any is a number."""
    table = find_table(data)
    if table is not None and table.has(VALUE) and not table.has("x1"):
        return VALUE
    labelled = label_table(data)
    numbers = labelled is not None and any(ANY_NUMBER.fullmatch(row.cells["label"]) for row in labelled.rows)
    return "label" if numbers else None


def _splits(data: str) -> tuple[str, ...] | None:
    return None if value_column(data) is None else open_table(data).splits


def open_value_table(request: Request) -> TablePictures:
    table, column = open_table(request.data), value_column(request.data) or VALUE
    rows = table.rows_of(request.split)
    table.require_pictures(rows, follow=request.follow, strict=request.strict)
    if request.strict:
        rows = one_row_each(table, rows, column, "give one of them")
    return TablePictures(table, rows, (VALUE,), ({VALUE: _number(table, row, column)} for row in rows))


def _number(table: PictureTable, row: TableRow, column: str) -> float:
    text = row.cells[column]
    value = float(text) if ANY_NUMBER.fullmatch(text) else math.nan
    if not abs(value) <= LARGEST_NUMBER:
        raise table.fault(
            row, f"has {excerpt(text)} in the column {column}, which is no number; correct it, or remove the row"
        )
    return value


LAYOUT = Layout(
    name="table of numbers",
    example="FILE.csv with the columns path,value and perhaps split",
    splits=_splits,
    open_split=open_value_table,
    targets=("values",),
    order=47,
)
