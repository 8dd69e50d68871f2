"""Which class a pixel of a mask stands for: by its value, or by its colour.

Read from a file in the data's folder or beside the masks, the first that is there; capitals make no difference, and
class_names and labels are as good as classes:
- classes.txt, labels.txt, codes.txt: a name a line; line 1 is value 0. Red, green and blue may stand before or behind
  each name. If every line begins with a number, as in `7 road` or `7: road`, that is the value. # begins a comment.
- classes.json, id2label.json, classes.yaml: see `class_tree.py`.
- classes.csv: name and value, value and name, or name, red, green and blue; with or without a heading.
- class_dict.csv: name, red, green, blue under a heading.
- label_colors.txt: red, green, blue, name.
- objectInfo150.txt of ADE20K: value in the first column, name in the last; value 0 stands for no class.
Masks of Cityscapes and CamVid are known by the names of their files. Otherwise the classes are the values that are
found in the masks.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from vitreous.data.layouts.class_tree import LARGEST_VALUE, RGB, values_or_colours
from vitreous.errors import InputError
from vitreous.files.limits import MAX_DESCRIPTION_BYTES
from vitreous.files.reading import PlainLoader, excerpt, names_in, parse_json, read_text, reading, rows_in

IGNORE = 255  # class number of pixels that count neither as right nor as wrong
MOST_MASK_CLASSES = 255
UNKNOWN_CLASS = -1
_NAMES_OF_NO_CLASS = {"background", "other", "others", "unlabelled", "unlabeled", "unlabel", "void", "ignore"}
_NAME_THEN_COLOUR = re.compile(r"^(.*?)[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})\s*$")
_COLOUR_THEN_NAME = re.compile(r"^(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(.+?)\s*$")
_VALUE_THEN_NAME = re.compile(r"^(\d{1,9})[\s,;:=]+(.*[^\W\d].*)$")  # a name has a letter
_NAME_THEN_VALUE = re.compile(r"^([^,;]*[^\W\d][^,;]*)[,;]\s*(\d{1,9})$")

CITYSCAPES = {  # value in *_labelIds.png -> name of the 19 classes that are evaluated
    7: "road",
    8: "sidewalk",
    11: "building",
    12: "wall",
    13: "fence",
    17: "pole",
    19: "traffic light",
    20: "traffic sign",
    21: "vegetation",
    22: "terrain",
    23: "sky",
    24: "person",
    25: "rider",
    26: "car",
    27: "truck",
    28: "bus",
    31: "train",
    32: "motorcycle",
    33: "bicycle",
}

# The eleven classes of CamVid that are usually distinguished; masks have them as 0 to 10, and 11 for none of them.
CAMVID = (*("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"),)
CAMVID_FILE = re.compile(r"(0001TP|0006R0|0016E5|Seq05VD)_f?\d{5,6}")  # its four drives


@dataclass(frozen=True)
class MaskClasses:
    names: tuple[str, ...]
    values: dict[int, int] = field(default_factory=dict)  # value of a pixel -> class number
    colours: dict[RGB, int] = field(default_factory=dict)  # the same for masks in colour; empty if values count

    def __post_init__(self) -> None:
        if len(self.names) > MOST_MASK_CLASSES:
            raise InputError(f"the masks have {len(self.names)} classes; at most {MOST_MASK_CLASSES} can be told apart")
        for value in self.values:
            if not 0 <= value <= LARGEST_VALUE:
                raise InputError(f"masks cannot hold the value {excerpt(value)}; give values from 0 to {LARGEST_VALUE}")

    def numbers(self, mask: NDArray[np.integer]) -> NDArray[np.int16]:
        """(H, W) of values or (H, W, 3) of colours to class numbers; `UNKNOWN_CLASS` where none is known."""
        if mask.ndim == 3:
            return self._by_colour(mask)
        table = np.full(LARGEST_VALUE + 2, UNKNOWN_CLASS, np.int16)  # the last stands for all that no mask should hold
        for value, number in self.values.items():
            table[value] = number
        return table[np.where((mask < 0) | (mask > LARGEST_VALUE), LARGEST_VALUE + 1, mask)]

    def _by_colour(self, mask: NDArray[np.integer]) -> NDArray[np.int16]:
        packed = mask.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32)  # (H, W)
        found, places = np.unique(packed, return_inverse=True)
        known = {red << 16 | green << 8 | blue: number for (red, green, blue), number in self.colours.items()}
        return np.array([known.get(int(colour), UNKNOWN_CLASS) for colour in found], np.int16)[
            places.reshape(packed.shape)
        ]


def with_ignored(classes: MaskClasses, ignore: tuple[int, ...] | None, *, reduce_zero: bool) -> MaskClasses:
    """The values of `ignore` (255 by default) stand for no class; with `reduce_zero` 0 does too, and 1 is the first."""
    names, values, colours = classes.names, dict(classes.values), dict(classes.colours)
    if reduce_zero and values.get(0) == 0:
        if names[0].lower() in _NAMES_OF_NO_CLASS:  # the list names value 0 as well
            names = names[1:]
            values = {value: number - 1 for value, number in values.items() if number}
        else:
            values = {value + 1: number for value, number in values.items()}
    for value in (IGNORE,) if ignore is None else ignore:
        if ignore is not None or value not in values:  # a class that has this very value on purpose stays one
            values[value] = IGNORE
    if reduce_zero:
        values[0] = IGNORE
    return MaskClasses(names, values, colours)


def listed_classes(root: Path, masks: Path) -> MaskClasses | None:
    """From one of the files named above, in `root` or in a folder on the way to the masks; None if there is none."""
    between = [folder for folder in (masks, *masks.parents) if folder != root and root in folder.parents]
    for folder in (root, *reversed(between)):
        names = sorted(os.listdir(folder)) if folder.is_dir() else []
        there = {name.lower(): folder / name for name in names}  # of classes.txt and Classes.txt the former
        for name in _LIST_READERS:
            if name in there and there[name].is_file():
                try:
                    return _read_list(there[name], _LIST_READERS[name])
                except InputError:
                    if name not in _AMBIGUOUS_LISTS:
                        raise
    return None


def _read_list(file: Path, reader: Callable[[str], MaskClasses]) -> MaskClasses:
    text = read_text(file, MAX_DESCRIPTION_BYTES)
    with reading(f"the classes in {file}", remedy="correct the file"):
        return reader(text)


def camvid() -> MaskClasses:
    return MaskClasses(CAMVID, {**{number: number for number in range(len(CAMVID))}, len(CAMVID): IGNORE})


def cityscapes(train_ids: bool) -> MaskClasses:
    """With `train_ids` the values are class numbers; otherwise every value without a class stands for none."""
    names = tuple(CITYSCAPES.values())
    if train_ids:
        return MaskClasses(names, {number: number for number in range(len(names))})
    numbers = {value: number for number, value in enumerate(CITYSCAPES)}
    return MaskClasses(names, {value: numbers.get(value, IGNORE) for value in range(34)})


def found_classes(values: set[int], ignore: tuple[int, ...] | None) -> MaskClasses:
    """Named by their values. Of 0 and 255 alone both are classes: that is how two-class masks are often drawn."""
    left_out = set(ignore or ()) if ignore is not None or values == {0, IGNORE} else {IGNORE}
    kept = sorted(values - left_out)
    return MaskClasses(tuple(map(str, kept)), {value: number for number, value in enumerate(kept)})


def _lines(text: str) -> list[str]:
    """Short ones: the patterns above take the square of their length."""
    return [row for _, row in rows_in(text) if row]


def _names(text: str) -> MaskClasses:
    explained = _explained(_lines(text))
    if explained is not None:
        return explained
    names = names_in(text)
    return MaskClasses(tuple(names), {number: number for number in range(len(names))})


def _explained(lines: list[str]) -> MaskClasses | None:
    """From lines that all have a value or a colour beside the name; None if they have not."""
    first = [match for match in map(_COLOUR_THEN_NAME.match, lines) if match]
    if len(first) == len(lines):
        return _coloured([(match[4], match[1], match[2], match[3]) for match in first])
    valued = [match for match in map(_VALUE_THEN_NAME.match, lines) if match]
    if len(valued) == len(lines):
        return _valued([(int(match[1]), match[2]) for match in valued])
    coloured = [match for match in map(_NAME_THEN_COLOUR.match, lines) if match]
    if len(coloured) == len(lines):
        return _coloured([(match[1], match[2], match[3], match[4]) for match in coloured])
    return None


def _table(text: str) -> MaskClasses:
    """With or without a heading; values before the names or behind them."""
    lines = _lines(text.replace('"', ""))
    for rows in (lines, lines[1:]):
        turned = [_NAME_THEN_VALUE.sub(r"\2,\1", row) for row in rows]
        explained = _explained(rows) or _explained(turned)
        if rows and explained is not None:
            return explained
    raise ValueError("each line needs a name and its value, or a name, red, green and blue")


def _valued(rows: list[tuple[int, str]]) -> MaskClasses:
    """Names behind their values, and before red, green and blue where masks are in colours."""
    classes = _tree([{"value": value, "name": name} for value, name in rows])
    matches = [_NAME_THEN_COLOUR.match(name) for name in classes.names]
    if not all(matches):
        return classes
    coloured = _coloured([(match[1], match[2], match[3], match[4]) for match in matches if match])
    return replace(coloured, values={value: coloured.values[place] for value, place in classes.values.items()})


def _class_dict(text: str) -> MaskClasses:
    rows = [_NAME_THEN_COLOUR.match(line) for line in _lines(text)[1:]]
    if not all(rows):
        raise ValueError("each line needs a name, red, green and blue")
    return _coloured([(row[1], row[2], row[3], row[4]) for row in rows if row])


def _label_colours(text: str) -> MaskClasses:
    rows = [_COLOUR_THEN_NAME.match(line) for line in _lines(text)]
    if not all(rows):
        raise ValueError("each line needs red, green, blue and a name")
    return _coloured([(row[4], row[1], row[2], row[3]) for row in rows if row])


def _object_info(text: str) -> MaskClasses:
    rows = [line.split("\t") for line in _lines(text)[1:]]
    values: dict[int, int] = {int(row[0]): number for number, row in enumerate(rows)}
    return MaskClasses(tuple(row[-1].split(",")[0].strip() for row in rows), {0: IGNORE, **values})


def _coloured(rows: list[tuple[str, str, str, str]]) -> MaskClasses:
    """Colours and, for masks that hold numbers after all, the places in the list. Void colours stand for no class."""
    kept = [row for row in rows if row[0].strip().lower() not in _NAMES_OF_NO_CLASS - {"background", "other", "others"}]
    numbers = {row: number for number, row in enumerate(kept)}
    colours = {(int(row[1]), int(row[2]), int(row[3])): numbers.get(row, IGNORE) for row in rows}
    values = {place: numbers.get(row, IGNORE) for place, row in enumerate(rows)}
    return MaskClasses(tuple(row[0].strip() for row in kept), values, colours)


def _tree(content: Any) -> MaskClasses:
    listed = values_or_colours(content)
    coloured = [(name, *map(str, colour)) for colour, name in listed if isinstance(colour, tuple)]
    if coloured:
        return _coloured(coloured)  # type: ignore[arg-type]
    values = {value: number for number, (value, _) in enumerate(listed) if isinstance(value, int)}
    return MaskClasses(tuple(name for _, name in listed), values)


def _json(text: str) -> MaskClasses:
    return _tree(parse_json(text))


def _yaml(text: str) -> MaskClasses:
    return _tree(yaml.load(text, PlainLoader))  # noqa: S506  (derived from SafeLoader)


_LIST_READERS: dict[str, Callable[[str], MaskClasses]] = {
    "classes.txt": _names,
    "labels.txt": _names,
    "codes.txt": _names,
    "classes.json": _json,
    "id2label.json": _json,
    "classes.yaml": _yaml,
    "classes.yml": _yaml,
    "class_dict.csv": _class_dict,
    "label_colors.txt": _label_colours,
    "objectinfo150.txt": _object_info,
    "class_names.txt": _names,
    "class_names.json": _json,
    "class_names.yaml": _yaml,
    "class_names.yml": _yaml,
    "classes.csv": _table,
    "class_names.csv": _table,
    "labels.json": _json,
    "labels.yaml": _yaml,
    "labels.yml": _yaml,
    "labels.csv": _table,
}
# Files about pictures have these names, too: ignored if they do not list classes.
_AMBIGUOUS_LISTS = {"labels.json", "labels.yaml", "labels.yml", "labels.csv"}
