"""Which class a pixel of a mask stands for: by its value, or by its colour.

Read from a file in the data's folder or beside the masks, the first that is there; capitals make no difference, and
class_names and labels are as good as classes:
- classes.txt, labels.txt, codes.txt: a name a line; line 1 is value 0. Red, green and blue may stand before or behind
  each name. If every line begins with a number, as in `7 road` or `7: road`, that is the value. # begins a comment.
- classes.json, id2label.json, classes.yaml, perhaps under a key such as "classes" or "names":
    ["sky", "road"]                                             names by place: sky is value 0
    {"1": "sky", "7": "road"} or {"sky": 1, "road": 7}          values
    {"sky": [128, 0, 0], "road": [0, 128, 0]}                   colours
    [{"name": "sky", "id": 1, "color": [128, 0, 0]}, ...]       as tools for labelling write them
- classes.csv: name and value, value and name, or name, red, green and blue; with or without a heading.
- class_dict.csv: name, red, green, blue under a heading.
- label_colors.txt: red, green, blue, name.
- objectInfo150.txt of ADE20K: value in the first column, name in the last; value 0 stands for no class.
Masks of Cityscapes and CamVid are known by the names of their files. Otherwise the classes are the values that are
found in the masks.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from vitreous.data.image import SUFFIXES
from vitreous.errors import InputError
from vitreous.files.limits import MAX_DESCRIPTION_BYTES
from vitreous.files.reading import PlainLoader, excerpt, names_in, parse_json, read_text, reading, rows_in

IGNORE = 255  # class number of pixels that count neither as right nor as wrong
MOST_MASK_CLASSES = 255
UNKNOWN_CLASS = -1
LARGEST_VALUE = (1 << 16) - 1  # of a pixel
_NAMES_OF_NO_CLASS = {"background", "other", "others", "unlabelled", "unlabeled", "unlabel", "void", "ignore"}
_COLOUR = r"(?P<red>\d{1,3})[\s,;]+(?P<green>\d{1,3})[\s,;]+(?P<blue>\d{1,3})"
_NAME_THEN_COLOUR = re.compile(rf"^(?P<name>.*?)[\s,;]+{_COLOUR}\s*$")
_COLOUR_THEN_NAME = re.compile(rf"^{_COLOUR}[\s,;]+(?P<name>.+?)\s*$")
_VALUE_THEN_NAME = re.compile(r"^(\d{1,9})[\s,;:=]+(.*[^\W\d].*)$")  # a name has a letter
_NAME_THEN_VALUE = re.compile(r"^([^,;]*[^\W\d][^,;]*)[,;]\s*(\d{1,9})$")

_TREE_KEYS = ("classes", "names", "labels", "id2label", "categories")
_ABOUT_PICTURES = "it describes pictures; a file that describes only classes is needed"

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
CAMVID = ("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist")
CAMVID_FILE = re.compile(r"(0001TP|0006R0|0016E5|Seq05VD)_f?\d{5,6}")  # its four drives

RGB = tuple[int, int, int]
Coloured = tuple[str, RGB]  # name and colour of a class


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
                    text = read_text(there[name], MAX_DESCRIPTION_BYTES)
                    with reading(f"the classes in {there[name]}", remedy="correct the file"):
                        return _LIST_READERS[name](text)
                except InputError:
                    if name not in _AMBIGUOUS_LISTS:
                        raise
    return None


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


def _explained(lines: Sequence[str]) -> MaskClasses | None:
    """From lines that all have a value or a colour beside the name; None if they have not."""
    if (coloured := _colours(_COLOUR_THEN_NAME, lines)) is not None:
        return _coloured(coloured)
    valued = [_VALUE_THEN_NAME.match(line) for line in lines]
    if not all(valued):
        coloured = _colours(_NAME_THEN_COLOUR, lines)
        return None if coloured is None else _coloured(coloured)
    classes = _tree([{"value": int(match[1]), "name": match[2]} for match in valued if match])
    # Between value and colour where masks are in colours.
    if (coloured := _colours(_NAME_THEN_COLOUR, classes.names)) is None:
        return classes
    found = _coloured(coloured)
    return replace(found, values={value: found.values[place] for value, place in classes.values.items()})


def _colours(pattern: re.Pattern[str], lines: Sequence[str]) -> list[Coloured] | None:
    """Name and colour in each line; None if one has none."""
    rows = [pattern.match(line) for line in lines]
    found = [(row["name"], (int(row["red"]), int(row["green"]), int(row["blue"]))) for row in rows if row]
    return found if len(found) == len(lines) else None


def _table(text: str) -> MaskClasses:
    """With or without a heading; values before the names or behind them."""
    lines = _lines(text.replace('"', ""))
    for rows in (lines, lines[1:]):
        turned = [_NAME_THEN_VALUE.sub(r"\2,\1", row) for row in rows]
        explained = _explained(rows) or _explained(turned)
        if rows and explained is not None:
            return explained
    raise ValueError("each line needs a name and its value, or a name, red, green and blue")


def _class_dict(text: str) -> MaskClasses:
    rows = _colours(_NAME_THEN_COLOUR, _lines(text)[1:])
    if rows is None:
        raise ValueError("each line needs a name, red, green and blue")
    return _coloured(rows)


def _label_colours(text: str) -> MaskClasses:
    rows = _colours(_COLOUR_THEN_NAME, _lines(text))
    if rows is None:
        raise ValueError("each line needs red, green, blue and a name")
    return _coloured(rows)


def _object_info(text: str) -> MaskClasses:
    rows = [line.split("\t") for line in _lines(text)[1:]]
    values: dict[int, int] = {int(row[0]): number for number, row in enumerate(rows)}
    return MaskClasses(tuple(row[-1].split(",")[0].strip() for row in rows), {0: IGNORE, **values})


def _coloured(rows: list[Coloured]) -> MaskClasses:
    """Colours and, for masks that hold numbers after all, the places in the list. Void colours stand for no class."""
    kept = [row for row in rows if row[0].strip().lower() not in _NAMES_OF_NO_CLASS - {"background", "other", "others"}]
    numbers = {row: number for number, row in enumerate(kept)}
    values = {place: numbers.get(row, IGNORE) for place, row in enumerate(rows)}
    return MaskClasses(
        tuple(row[0].strip() for row in kept), values, {row[1]: numbers.get(row, IGNORE) for row in rows}
    )


def _tree(content: Any) -> MaskClasses:
    listed = values_or_colours(content)
    coloured = [(name, colour) for colour, name in listed if isinstance(colour, tuple)]
    if coloured:
        return _coloured(coloured)
    values = {value: number for number, (value, _) in enumerate(listed) if isinstance(value, int)}
    return MaskClasses(tuple(name for _, name in listed), values)


def values_or_colours(content: Any) -> list[tuple[int, str]] | list[tuple[RGB, str]]:
    """The value of each class and its name, by rising value; or its colour and name. A ValueError if it is neither."""
    if isinstance(content, dict) and "annotations" in content:
        raise ValueError(_ABOUT_PICTURES)
    if isinstance(content, dict) and (key := next((key for key in _TREE_KEYS if key in content), None)):
        content = content[key]
    pairs: list[tuple[Any, Any]] = []
    if isinstance(content, dict):
        pairs = [(key, value) if _is_number(key) else (value, key) for key, value in content.items()]
    elif isinstance(content, list):
        pairs = [_entry(place, entry) for place, entry in enumerate(content)]
    if not pairs or not all(isinstance(name, str) and name.strip() for _, name in pairs):
        raise ValueError("a list of names is needed, or a dictionary of values or colours and names")
    if any(name.lower().endswith(SUFFIXES) for _, name in pairs):
        raise ValueError(_ABOUT_PICTURES)
    if all(isinstance(value, list) for value, _ in pairs):
        return [(_colour(value), name.strip()) for value, name in pairs]
    if not all(_is_number(value) and int(value) <= LARGEST_VALUE for value, _ in pairs):
        raise ValueError(f"the value of a class is a whole number from 0 to {LARGEST_VALUE}")
    numbered = sorted((int(value), name.strip()) for value, name in pairs)
    if len({value for value, _ in numbered}) < len(numbered):
        raise ValueError("two classes have the same value")
    return numbered


def _entry(place: int, entry: Any) -> tuple[Any, Any]:
    """Value or colour, and name, of something in a list."""
    if not isinstance(entry, dict):
        return place, entry
    colour = next((entry[key] for key in ("color", "colour", "rgb") if isinstance(entry.get(key), list)), None)
    value = next((entry[key] for key in ("value", "id", "index") if _is_number(entry.get(key))), place)
    return value if colour is None else colour, entry.get("name")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool) and bool(re.fullmatch("[0-9]{1,9}", str(value)))


def _colour(value: list[Any]) -> RGB:
    if len(value) != 3 or not all(_is_number(part) and int(part) <= 255 for part in value):
        raise ValueError("a colour is three numbers from 0 to 255")
    red, green, blue = map(int, value)
    return red, green, blue


def _json(text: str) -> MaskClasses:
    return _tree(parse_json(text))


def _yaml(text: str) -> MaskClasses:
    return _tree(yaml.load(text, PlainLoader))  # noqa: S506  (derived from SafeLoader)


_LIST_READERS = {  # by the names of files, best first
    **dict.fromkeys(("classes.txt", "labels.txt", "codes.txt"), _names),
    **dict.fromkeys(("classes.json", "id2label.json"), _json),
    **dict.fromkeys(("classes.yaml", "classes.yml"), _yaml),
    "class_dict.csv": _class_dict,
    "label_colors.txt": _label_colours,
    "objectinfo150.txt": _object_info,
    "class_names.txt": _names,
    "class_names.json": _json,
    **dict.fromkeys(("class_names.yaml", "class_names.yml"), _yaml),
    **dict.fromkeys(("classes.csv", "class_names.csv"), _table),
    "labels.json": _json,
    "labels.yaml": _yaml,
    "labels.yml": _yaml,
    "labels.csv": _table,
}
# Files about pictures have these names, too: ignored if they do not list classes.
_AMBIGUOUS_LISTS = {"labels.json", "labels.yaml", "labels.yml", "labels.csv"}
