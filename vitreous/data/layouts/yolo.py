"""Objects in YOLO's format: a text file for each picture, a line for each object.

    DATA/images/train/*.jpg, DATA/labels/train/*.txt, DATA/data.yaml (names: the classes)
    DATA/train/images/*.jpg, DATA/train/labels/*.txt, DATA/data.yaml

A line is a class number and then, in fractions of the picture: centre and sides of a box; or x and y of the corners of
an outline; or, where data.yaml has a `kpt_shape`, a box followed by keypoints. A picture without a text file, or with
an empty one, shows no object.

Text files are read together with their pictures: a faulty one counts as an unreadable picture.
"""

import math
from pathlib import Path
from typing import Any

from vitreous.data.annotations import KeypointScheme, objects_of
from vitreous.data.image import SUFFIXES, ImageError, upright_size
from vitreous.data.image_set import SPLITS, PairedFiles, find_split, picture_files, require_split
from vitreous.data.layouts.base import Layout, expanded
from vitreous.errors import InputError
from vitreous.files.limits import (
    MAX_CLASS_NAME_CHARS,
    MAX_COORDINATE_FRACTION,
    MAX_DATA_CLASSES,
    MAX_DESCRIPTION_BYTES,
    MAX_KEYPOINTS,
    MAX_PAGE_BYTES,
    MAX_PICTURE_OBJECTS,
)
from vitreous.files.reading import excerpt, is_text, read_names, read_text, read_yaml, truncate

YOLO_FOLDERS = (("images/{}", "labels/{}"), ("{}/images", "{}/labels"))
DESCRIPTIONS = ("data.yaml", "dataset.yaml", "data.yml")
_SAMPLED_TEXT_FILES = 50  # that decide whether there are outlines


def yolo_splits(root: Path) -> dict[str, tuple[Path, Path]]:
    """Name of a split -> folders of pictures and of text files."""
    found = {}
    for split in dict.fromkeys(name for names in SPLITS.values() for name in names):
        for pictures, labels in YOLO_FOLDERS:
            folders = root / pictures.format(split), root / labels.format(split)
            if all(folder.is_dir() for folder in folders) and next(folders[1].rglob("*.txt"), None):
                found[split] = folders
                break
    return found


class YoloSet(PairedFiles):
    """The pictures of one split with their objects."""

    def __init__(self, root: Path, split: str, *, strict: bool = True) -> None:
        """`strict` refuses pictures to train on of which none shows an object."""
        splits = yolo_splits(root)
        self.split = require_split(split, splits, f"folder '{root}'")
        self.pictures, self.labels = splits[self.split]
        described = _described(root)
        self.classes = _names(described, root)
        self.category_ids = tuple(range(len(self.classes)))
        self._keypoints = _keypoints(described, root)
        if self._keypoints is not None:
            self.keypoint_names, self.keypoint_pairs = self._keypoints.names, self._keypoints.pairs
        self.files, self.passed_over = picture_files(self.pictures)
        if not self.files:
            raise InputError(f"folder '{self.pictures}' holds no image ({', '.join(SUFFIXES)})")
        lines = (line for index in range(len(self)) for line in self._readable_lines(index))
        if strict and self.split == find_split("train", splits) and not any(map(str.strip, lines)):
            raise InputError(f"no text file in '{self.labels}' names an object in a picture of '{self.pictures}'")
        # All samples of a batch must be alike, so a few files decide for all whether there are masks.
        few = (
            len(line.split())
            for index in range(min(_SAMPLED_TEXT_FILES, len(self)))
            for line in self._readable_lines(index)
        )
        self._outlined = self._keypoints is None and any(numbers > 5 for numbers in few)

    def _readable_lines(self, index: int) -> list[str]:
        try:
            return _lines(self.target_file(index))
        except ImageError:  # reported when the picture is needed
            return []

    def target_file(self, index: int) -> Path:
        return (self.labels / self.files[index]).with_suffix(".txt")

    def target(self, index: int) -> dict[str, Any]:
        width, height = upright_size(self.encoded(index))
        lines = _lines(self.target_file(index))
        if len(lines) >= MAX_PICTURE_OBJECTS:
            raise ImageError(
                f"'{self.target_file(index)}' has {len(lines):,} lines; fewer than {MAX_PICTURE_OBJECTS:,} are read"
            )
        rows = [
            {**self._row(line, number, index, width, height), "id": index * MAX_PICTURE_OBJECTS + number}
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]
        objects = objects_of(rows, [row["label"] for row in rows], masks=self._outlined, keypoints=self._keypoints)
        return {"objects": objects, "image_id": index + 1}

    def _row(self, line: str, number: int, index: int, width: int, height: int) -> dict[str, Any]:
        def wrong(what: str) -> ImageError:
            return ImageError(f"line {number} of '{self.target_file(index)}' {what}: {truncate(line.strip())!r}")

        try:
            label, *values = map(float, line.split())
        except ValueError:
            raise wrong("holds something else than numbers") from None
        if label not in range(len(self.classes)):
            raise wrong(f"has the class {label:g}; there are {len(self.classes)}, from 0 on")
        if not all(map(math.isfinite, values)):
            raise wrong("holds numbers that are not finite")
        if any(abs(value) > MAX_COORDINATE_FRACTION for value in values):
            raise wrong("holds numbers that are no fractions of a picture")
        points = values[4:] if self._keypoints is not None else []
        if len(values) == 4 or (points and self._keypoints is not None):
            row = _box(values, width, height)
            if points:
                row["keypoints"] = self._points(points, width, height, wrong)
            return {**row, "label": int(label)}
        if len(values) < 6 or len(values) % 2:
            raise wrong("has neither a box of four numbers nor an outline of three corners or more")
        return {**_outline(values, width, height), "label": int(label)}

    def _points(self, values: list[float], width: int, height: int, wrong: Any) -> list[float]:
        count = len(self.keypoint_names)
        if len(values) not in (2 * count, 3 * count):
            raise wrong(f"has {len(values)} numbers for {count} keypoints")
        size = len(values) // count
        triples = (values[start : start + size] for start in range(0, len(values), size))
        # Without a visibility, a point in the corner means none.
        return [
            number
            for x, y, *seen in triples
            for number in (x * width, y * height, seen[0] if seen else 2.0 * bool(x or y))
        ]


def _box(values: list[float], width: int, height: int) -> dict[str, Any]:
    x, y, across, down = values[:4]
    return {"bbox": [(x - across / 2) * width, (y - down / 2) * height, across * width, down * height]}


def _outline(values: list[float], width: int, height: int) -> dict[str, Any]:
    x, y = [value * width for value in values[::2]], [value * height for value in values[1::2]]
    following = zip(x, y, x[1:] + x[:1], y[1:] + y[:1], strict=True)
    return {
        "bbox": [min(x), min(y), max(x) - min(x), max(y) - min(y)],
        "area": abs(sum(a * d - b * c for a, b, c, d in following)) / 2,
        "segmentation": [[number for point in zip(x, y, strict=True) for number in point]],
    }


# ---- data.yaml -------------------------------------------------------------------------------------------------


def _described(root: Path) -> dict[str, Any]:
    file = next((root / name for name in DESCRIPTIONS if (root / name).is_file()), None)
    if file is None:
        return {}
    described = read_yaml(file, MAX_DESCRIPTION_BYTES)
    return described if isinstance(described, dict) else {}


def _names(described: dict[str, Any], root: Path) -> tuple[str, ...]:
    names, listed = described.get("names"), root / "classes.txt"
    if isinstance(names, dict) and all(place in names for place in range(len(names))):
        names = [names[place] for place in range(len(names))]
    if names is None and listed.is_file():
        names = read_names(listed)
    if not isinstance(names, list) or not names:
        raise InputError(
            f"'{root}' does not name its classes; write them into data.yaml, as in names: [cat, dog], in the order of "
            "their numbers"
        )
    if len(names) > MAX_DATA_CLASSES:
        raise InputError(f"'{root}' names {len(names):,} classes; at most {MAX_DATA_CLASSES:,} are read")
    for place, name in enumerate(names):
        if isinstance(name, list | dict | set) or not is_text(str(name)) or len(str(name)) > MAX_CLASS_NAME_CHARS:
            raise InputError(f"class {place} in 'names' of '{root}' is {excerpt(name)}; a name is needed")
    return tuple(map(str, names))


def _keypoints(described: dict[str, Any], root: Path) -> KeypointScheme | None:
    shape = described.get("kpt_shape")
    if shape is None:
        return None
    whole = isinstance(shape, list) and len(shape) == 2 and all(type(number) is int for number in shape)
    if not whole or shape[1] not in (2, 3) or not 1 <= shape[0] <= MAX_KEYPOINTS:
        raise InputError(
            f"kpt_shape of '{root}' is {excerpt(shape)}; a number of keypoints, at most {MAX_KEYPOINTS}, and 2 or 3 "
            "are needed"
        )
    count, order = shape[0], described.get("flip_idx") or list(range(shape[0]))
    places = [place for place in order if type(place) is int] if isinstance(order, list) else []
    if sorted(places) != list(range(count)) or len(order) != count:
        raise InputError(f"flip_idx of '{root}' is {excerpt(order)}; the places 0 to {count - 1} are needed, each once")
    pairs = tuple((place, other) for place, other in enumerate(order) if place < other)
    return KeypointScheme(tuple(f"point {place + 1}" for place in range(count)), pairs)


def _lines(file: Path) -> list[str]:
    if not file.exists():
        return []
    try:
        return read_text(file, MAX_PAGE_BYTES).splitlines()
    except InputError as reason:
        raise ImageError(str(reason)) from reason


LAYOUT = Layout(
    name="YOLO",
    example="DIR/images/train/*.jpg, DIR/labels/train/*.txt (the same with val) and DIR/data.yaml with names",
    splits=lambda data: yolo_splits(expanded(data)) or None,
    open_split=lambda request: YoloSet(request.path, request.split, strict=request.strict),
    targets=("boxes", "keypoints"),
    order=90,
)
