"""Which class a pixel of a mask stands for: by its value, or by its colour.

Read from a file of the data's folder, the first that is there:
- classes.txt, labels.txt, codes.txt: a name a line; line 1 is value 0. A name may be followed by red, green and blue.
- class_dict.csv: name, red, green, blue under a heading.
- label_colors.txt: red, green, blue, name.
- objectInfo150.txt of ADE20K: value in the first column, name in the last; value 0 stands for no class.
Masks of Cityscapes are known by their names. Otherwise the classes are the values that are found in the masks.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import InputError
from vitreous.reading import read_names, reason_of, shown

IGNORE = 255  # class number of pixels that count neither as right nor as wrong
MOST = 255  # classes
LARGEST_VALUE = (1 << 16) - 1  # of a pixel
UNKNOWN = -1
NOTHING = {"background", "other", "others", "unlabelled", "unlabeled", "unlabel", "void", "ignore"}
NUMBERS = re.compile(r"^(.*?)[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})\s*$")
NUMBERS_FIRST = re.compile(r"^(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(.+?)\s*$")

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

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class MaskClasses:
    names: tuple[str, ...]
    values: dict[int, int] = field(default_factory=dict)  # value of a pixel -> class number
    colours: dict[Colour, int] = field(default_factory=dict)  # the same for masks in colour; empty if values count

    def __post_init__(self) -> None:
        if len(self.names) > MOST:
            raise InputError(f"the masks have {len(self.names)} classes; at most {MOST} can be told apart")
        for value in self.values:
            if not 0 <= value <= LARGEST_VALUE:
                raise InputError(f"masks cannot hold the value {shown(value)}; give values from 0 to {LARGEST_VALUE}")

    def numbers(self, mask: NDArray[np.integer]) -> NDArray[np.int16]:
        """(H, W) of values or (H, W, 3) of colours to class numbers; `UNKNOWN` where none is known."""
        if mask.ndim == 3:
            return self._by_colour(mask)
        table = np.full(LARGEST_VALUE + 2, UNKNOWN, np.int16)  # the last stands for all that no mask should hold
        for value, number in self.values.items():
            table[value] = number
        return table[np.where((mask < 0) | (mask > LARGEST_VALUE), LARGEST_VALUE + 1, mask)]

    def _by_colour(self, mask: NDArray[np.integer]) -> NDArray[np.int16]:
        packed = mask.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32)  # (H, W)
        found, places = np.unique(packed, return_inverse=True)
        known = {red << 16 | green << 8 | blue: number for (red, green, blue), number in self.colours.items()}
        return np.array([known.get(int(colour), UNKNOWN) for colour in found], np.int16)[places.reshape(packed.shape)]


def with_ignored(classes: MaskClasses, ignore: tuple[int, ...] | None, *, reduce_zero: bool) -> MaskClasses:
    """The values of `ignore` (255 by default) stand for no class; with `reduce_zero` 0 does too, and 1 is the first."""
    names, values, colours = classes.names, dict(classes.values), dict(classes.colours)
    if reduce_zero and values.get(0) == 0:
        if names[0].lower() in NOTHING:  # the list names value 0 as well
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


def listed_classes(root: Path) -> MaskClasses | None:
    """From one of the files named above, or None if there is none."""
    for name, read in READERS.items():
        file = root / name
        if file.is_file():
            lines = read_names(file)
            try:
                return read(lines)
            except (ValueError, IndexError) as reason:
                raise InputError(f"the classes in {file} cannot be read: {reason_of(reason)}") from reason
    return None


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


def _names(lines: list[str]) -> MaskClasses:
    matches = [NUMBERS.match(line) for line in lines]
    if all(matches):
        return _coloured([(match[1], match[2], match[3], match[4]) for match in matches if match])
    names = tuple(line.strip() for line in lines)
    return MaskClasses(names, {number: number for number in range(len(names))})


def _class_dict(lines: list[str]) -> MaskClasses:
    rows = [NUMBERS.match(line) for line in lines[1:]]
    if not all(rows):
        raise ValueError("each line needs a name, red, green and blue")
    return _coloured([(row[1], row[2], row[3], row[4]) for row in rows if row])


def _label_colours(lines: list[str]) -> MaskClasses:
    rows = [NUMBERS_FIRST.match(line) for line in lines]
    if not all(rows):
        raise ValueError("each line needs red, green, blue and a name")
    return _coloured([(row[4], row[1], row[2], row[3]) for row in rows if row])


def _object_info(lines: list[str]) -> MaskClasses:
    rows = [line.split("\t") for line in lines[1:]]
    values: dict[int, int] = {int(row[0]): number for number, row in enumerate(rows)}
    return MaskClasses(tuple(row[-1].split(",")[0].strip() for row in rows), {0: IGNORE, **values})


def _coloured(rows: list[tuple[str, str, str, str]]) -> MaskClasses:
    """Colours and, for masks that hold numbers after all, the places in the list. Void colours stand for no class."""
    kept = [row for row in rows if row[0].strip().lower() not in NOTHING - {"background", "other", "others"}]
    numbers = {row: number for number, row in enumerate(kept)}
    colours = {(int(row[1]), int(row[2]), int(row[3])): numbers.get(row, IGNORE) for row in rows}
    values = {place: numbers.get(row, IGNORE) for place, row in enumerate(rows)}
    return MaskClasses(tuple(row[0].strip() for row in kept), values, colours)


READERS = {
    "classes.txt": _names,
    "labels.txt": _names,
    "codes.txt": _names,
    "class_dict.csv": _class_dict,
    "label_colors.txt": _label_colours,
    "objectInfo150.txt": _object_info,
}
