"""Objects in pictures, in a table: a row for each with the columns path,x1,y1,x2,y2,label and perhaps split.

Edges are in pixels, x2 and y2 the right and lower one; xmin,ymin,xmax,ymax mean the same. A row with a path alone is a
picture without objects.
"""

from collections.abc import Iterator
from typing import Any

from vitreous.data.annotations import Faults, ObjectSet, Record, objects_of, require_objects
from vitreous.data.image_set import find_split
from vitreous.data.layouts.base import Layout, Request
from vitreous.data.layouts.csv_labels import known_classes, require_labels
from vitreous.data.picture_table import BOX_COLUMNS, PictureTable, TableRow, find_table, open_table
from vitreous.files.limits import MAX_COORDINATE_PIXELS
from vitreous.files.reading import excerpt

_REMEDY = "correct the row, or see all of them with `vitreous check`"


def _splits(data: str) -> tuple[str, ...] | None:
    table = find_table(data)
    return table.splits if table is not None and table.has("label", *BOX_COLUMNS) else None


def open_box_table(request: Request) -> ObjectSet:
    table, faults = open_table(request.data), Faults(strict=request.strict)
    described = [row for row in table.rows if not is_empty(row)]
    require_labels(table, described)
    rows = table.rows_of(request.split)
    table.require_pictures(rows, follow=request.follow, strict=request.strict)
    classes = known_classes(table, {row.cells["label"] for row in described})
    images = ObjectSet(_records(table, rows, classes, faults), classes, faults=faults.found)
    if request.strict and (not table.splits or rows[0].split == find_split("train", table.splits)):
        require_objects(images, str(table.file))
    return images


def is_empty(row: TableRow) -> bool:
    """Whether it says that a picture has no objects."""
    return not any(row.cells[name] for name in (*BOX_COLUMNS, "label"))


def _records(table: PictureTable, rows: list[TableRow], classes: tuple[str, ...], faults: Faults) -> Iterator[Record]:
    labels = {name: place for place, name in enumerate(classes)}
    pictures: dict[str, list[TableRow]] = {}
    for row in rows:
        pictures.setdefault(row.path, []).append(row)
    for place, found in enumerate(pictures.values(), 1):
        objects = [entry for row in found if not is_empty(row) and (entry := _object(table, row, faults))]
        known = objects_of(objects, [labels[entry["name"]] for entry in objects])
        yield Record(found[0].path, table.picture(found[0]), None, place, known)


def _object(table: PictureTable, row: TableRow, faults: Faults) -> dict[str, Any] | None:
    """As a row of COCO's annotations, with a `name`; None if it has no box."""
    written = [row.cells[name] for name in BOX_COLUMNS]
    try:
        left, top, right, bottom = map(float, written)
        fine = left < right and top < bottom and all(abs(float(edge)) <= MAX_COORDINATE_PIXELS for edge in written)
    except ValueError:
        fine = False
    if not fine:
        problem = f"has the box {excerpt(','.join(written))}, which is no x1,y1,x2,y2 with x1 < x2 and y1 < y2"
        faults.note(str(table.fault(row, problem)), _REMEDY)
        return None
    return {"name": row.cells["label"], "bbox": [left, top, right - left, bottom - top], "id": row.line}


LAYOUT = Layout(
    name="table of boxes",
    example="FILE.csv with the columns path,x1,y1,x2,y2,label and perhaps split",
    splits=_splits,
    open_split=open_box_table,
    targets=("boxes",),
    order=46,
)
