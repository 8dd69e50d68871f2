"""Objects in Pascal VOC's format: an XML file for each picture.

    DATA/JPEGImages/*.jpg, DATA/Annotations/*.xml, DATA/ImageSets/Main/train.txt (names without suffix, one a line)
    DATA/train/*.jpg with DATA/train/*.xml beside them

Classes are the sorted names found in all XML files, or the lines of classes.txt if there is one. Boxes are taken as
they are written, xmax and ymax as the right and lower edge. Objects marked as difficult count as crowds: they need
not be found, and finding them is no mistake.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from vitreous.data.annotations import Faults, ObjectSet, Record, objects_of, require_objects
from vitreous.data.image import SUFFIXES
from vitreous.data.image_set import SPLITS, find_split, require_split
from vitreous.data.layouts.base import Layout, expanded
from vitreous.errors import InputError
from vitreous.files.limits import MAX_CLASS_NAME_CHARS, MAX_COORDINATE_PIXELS, MAX_LIST_BYTES, MAX_PAGE_BYTES
from vitreous.files.reading import excerpt, problem_of_path, read_bytes, read_names, reason_of, require_regular

_LISTS = Path("ImageSets", "Main")
SECOND_COLUMN = ("1", "-1", "0")  # of lists of single classes: shown, not shown, difficult
_REMEDY = "correct the file, or see all of them with `vitreous check`"


class Page(NamedTuple):
    """The annotations of one picture."""

    file: Path
    picture: str  # file name, or empty
    size: tuple[int, int] | None  # (H, W)
    objects: list[dict[str, Any]]  # rows as of COCO, with a `name`


def voc_splits(root: Path) -> dict[str, list[Path]]:
    """Name of a split -> its XML files, whether they are there or not."""
    names = dict.fromkeys(name for names in SPLITS.values() for name in names)
    found: dict[str, list[Path]] = {}
    for name in names:
        listed = root / _LISTS / f"{name}.txt"
        if (root / "Annotations").is_dir() and listed.is_file():
            # A second column, as in the lists of single classes, says nothing here.
            lines = os.fsdecode(read_bytes(listed, MAX_LIST_BYTES)).splitlines()
            stems = [_stem(line) for line in lines]
            found[name] = [root / "Annotations" / f"{stem}.xml" for stem in stems if stem]
        elif (root / name).is_dir() and (pages := sorted((root / name).glob("*.xml"))):
            found[name] = pages
    return found


def _stem(line: str) -> str:
    """A line of a list without its second column."""
    parts = line.rsplit(None, 1)
    return parts[0].strip() if len(parts) == 2 and parts[1] in SECOND_COLUMN else line.strip()


def open_voc(root: Path, split: str, *, strict: bool = True, follow: bool = False) -> ObjectSet:
    """The pictures of one split with their objects; `strict` and `follow` as in `open_coco`."""
    splits, faults = voc_splits(root), Faults(strict=strict)
    name = require_split(split, splits, f"folder '{root}'")
    if not splits[name]:
        raise InputError(f"split '{name}' of '{root}' lists no picture")
    for path in splits[name] if (root / "Annotations").is_dir() else ():
        if problem := problem_of_path(os.path.relpath(path, root / "Annotations"), follow=follow):
            raise InputError(f"{root / _LISTS / name}.txt names {excerpt(path.stem)}, which {problem}")
    pages = {path: _page(path, faults) for path in splits[name]}
    classes = _classes(root, splits, pages)
    images = ObjectSet(_records(name, pages, classes, faults), classes, faults=faults.found)
    if strict and name == find_split("train", splits):
        require_objects(images, f"split '{name}' of '{root}'")
    return images


def _classes(root: Path, splits: dict[str, list[Path]], pages: dict[Path, Page]) -> tuple[str, ...]:
    """The same for all splits, so that a class that one of them lacks shifts nothing."""
    listed = root / "classes.txt"
    if listed.is_file():
        return tuple(read_names(listed))
    others = {path for paths in splits.values() for path in paths} - set(pages)
    quiet = Faults(strict=False)  # faults of another split are reported when that is opened
    every = [*pages.values(), *(_page(path, quiet) for path in others)]
    found = sorted({row["name"] for page in every for row in page.objects})
    if not found:
        raise InputError(f"no object in any XML file of '{root}'; there is nothing to find")
    return tuple(found)


def _records(split: str, pages: dict[Path, Page], classes: tuple[str, ...], faults: Faults) -> Iterator[Record]:
    labels, number = {name: place for place, name in enumerate(classes)}, 0
    for place, page in enumerate(pages.values()):
        rows = []
        for row in page.objects:
            number += 1
            if row["name"] in labels:
                rows.append({**row, "id": number})
            else:
                faults.note(f"{page.file} has an object of class {row['name']!r}, which classes.txt lacks", _REMEDY)
        picture = _picture(page)
        name = f"{split}/{picture.name}"
        yield Record(name, picture, page.size, place + 1, objects_of(rows, [labels[row["name"]] for row in rows]))


def _picture(page: Page) -> Path:
    """Beside the XML file, or in JPEGImages; under the name given in it, or else under its own."""
    beside = page.file.parent
    folder = beside.with_name("JPEGImages") if beside.name == "Annotations" else beside
    given = Path(page.picture).name
    usable = bool(given) and not problem_of_path(given, follow=False)
    names = [*([given] if usable else []), *(page.file.stem + suffix for suffix in SUFFIXES)]
    return next((folder / name for name in names if (folder / name).is_file()), folder / names[0])


def _page(file: Path, faults: Faults) -> Page:
    try:
        require_regular(file, MAX_PAGE_BYTES)
        root = ElementTree.parse(file).getroot()  # noqa: S314 - expat itself limits how far entities may grow
    except FileNotFoundError:
        faults.note(f"{file} is missing", _REMEDY)
        return Page(file, "", None, [])
    except Exception as reason:  # any damage, unknown encodings, files that are too large
        faults.note(f"{file} cannot be read: {reason_of(reason)}", _REMEDY)
        return Page(file, "", None, [])
    height, width = (_number(root, f"size/{side}") for side in ("height", "width"))
    size = (int(height), int(width)) if height and width else None  # some tools write 0 x 0
    objects = []
    for place, element in enumerate(root.iter("object"), 1):
        name, edges = (element.findtext("name") or "").strip(), [_number(element, f"bndbox/{edge}") for edge in EDGES]
        if not name or len(name) > MAX_CLASS_NAME_CHARS or None in edges:
            lacks = "box with xmin, ymin, xmax and ymax" if name and len(name) <= MAX_CLASS_NAME_CHARS else "name"
            faults.note(f"object {place} of {file} has no {lacks} that can be used", _REMEDY)
            continue
        x0, y0, x1, y1 = (edge or 0.0 for edge in edges)
        crowd = _number(element, "difficult") == 1
        objects.append({"name": name, "bbox": [x0, y0, x1 - x0, y1 - y0], "iscrowd": crowd})
    return Page(file, (root.findtext("filename") or "").strip(), size, objects)


EDGES = ("xmin", "ymin", "xmax", "ymax")


def _number(element: ElementTree.Element, path: str) -> float | None:
    try:
        value = float(element.findtext(path) or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) <= MAX_COORDINATE_PIXELS else None


LAYOUT = Layout(
    name="Pascal VOC",
    example="DIR/JPEGImages, DIR/Annotations/*.xml, DIR/ImageSets/Main/{train,val}.txt; or DIR/train/*.jpg and *.xml",
    splits=lambda data: voc_splits(expanded(data)) or None,
    open_split=lambda request: open_voc(request.path, request.split, strict=request.strict, follow=request.follow),
    targets=("boxes",),
    order=80,
)
