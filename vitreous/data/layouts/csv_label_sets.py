"""Any number of classes for each picture, in a table: path,label with labels such as `cat;dog`, or none at all."""

from vitreous.data.layouts.base import Layout, Request
from vitreous.data.layouts.csv_labels import LABEL_SEPARATOR, known_classes, label_table
from vitreous.data.picture_table import TablePictures, TableRow, one_row_each, open_table
from vitreous.errors import InputError


def _splits(data: str) -> tuple[str, ...] | None:
    table = label_table(data)
    return None if table is None else table.splits


def open_label_set_table(request: Request) -> TablePictures:
    table = open_table(request.data)
    rows = table.rows_of(request.split)
    table.require_pictures(rows, follow=request.follow, strict=request.strict)
    if request.strict:
        rows = one_row_each(table, rows, "label", "write all of them in one row, as a;b")
    classes = known_classes(table, {label for row in table.rows for label in labels_in(row)})
    if not classes:
        raise InputError(f"{table.file} has no label in any row; write the classes of each picture, as cat;dog")
    numbers = {name: number for number, name in enumerate(classes)}
    return TablePictures(
        table, rows, classes, ({"label_set": tuple(numbers[label] for label in labels_in(row))} for row in rows)
    )


def labels_in(row: TableRow) -> list[str]:
    """Each once, in the order of the cell."""
    return [
        label for label in dict.fromkeys(part.strip() for part in row.cells["label"].split(LABEL_SEPARATOR)) if label
    ]


LAYOUT = Layout(
    name="table of several labels",
    example="FILE.csv with the columns path,label and labels such as cat;dog",
    splits=_splits,
    open_split=open_label_set_table,
    targets=("label_sets",),
    order=48,
)
