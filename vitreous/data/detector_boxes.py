"""Boxes of a detector, for a model that examines each object: as `predict` writes them, or as COCO does.

    {"images": [{"image": "photos/1.jpg", "predictions": [{"class": "person", "bbox": [x, y, w, h], "score": 0.9}]}]}
    [{"image_id": 139, "category_id": 1, "bbox": [x, y, w, h], "score": 0.9}]

The second form lacks pictures without boxes, and identifies pictures by number only.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitreous.data.image_set import ImageSet
from vitreous.errors import InputError
from vitreous.files.limits import MAX_RESULTS_BYTES
from vitreous.files.reading import excerpt, parse_json, read_bytes, reading

FARTHEST_EDGE_PIXELS = 1e6  # from the corner of the picture; no picture that can be read is so large
_REMEDY = "give predictions.json of a detector, or a list of COCO's results"


class Found(NamedTuple):
    """An object that a detector found in a picture."""

    box: tuple[float, float, float, float]  # x0 y0 x1 y1
    label: int  # place in the classes of the model that is asked about it
    score: float = 1.0


class DetectorBoxes(NamedTuple):
    """What a file says: about pictures by their names, or by their numbers."""

    named: dict[str, list[Found]]
    numbered: dict[int, list[Found]]

    def of_each(self, images: ImageSet, file: Path) -> list[list[Found]]:
        """For each picture of a data set the boxes in it."""
        if self.numbered:
            keys: list[Any] = [images.target(index)["image_id"] for index in range(len(images))]
            known: dict[Any, list[Found]] = dict(self.numbered)
        else:
            stored = [images.encoded(index) for index in range(len(images))]
            keys = [str(file.resolve()) if isinstance(file, Path) else images.name(i) for i, file in enumerate(stored)]
            # A picture as `predict` calls it: a path, or a sample such as shapes:val:3.
            known = {
                "/".join(name.split(":")[-2:]) if name.startswith("shapes:") else str(Path(name).resolve()): found
                for name, found in self.named.items()
            }
        if not known.keys() & set(keys):
            raise InputError(
                f"--boxes {file} is about other pictures, such as {next(iter(self.numbered or self.named))!r}; "
                "give what a detector found in those of the data"
            )
        return [known.get(key, []) for key in keys]


def read_boxes(file: Path, categories: Mapping[int, str], classes: Sequence[str], least: float = 0.0) -> DetectorBoxes:
    """Boxes with a score from `least`, of classes that the model knows; what has no area is left out.

    Args:
        categories: Numbers of classes in a list of COCO's results, and their names.
        classes: Names of the model's classes.
    """
    file = Path(file)  # a text is convenient in Python
    with reading(f"--boxes {file}", remedy=_REMEDY):
        content = parse_json(read_bytes(file, MAX_RESULTS_BYTES))
        places = {name: place for place, name in reversed(list(enumerate(classes)))}
        named: dict[str, list[Found]] = {}
        numbered: dict[int, list[Found]] = {}
        if isinstance(content, list):
            for row in content:
                numbered.setdefault(_whole(row["image_id"]), []).extend(
                    _found(row, categories.get(_whole(row["category_id"])), places, least)
                )
        else:
            for image in content["images"]:
                rows = image["predictions"]
                named[str(image["image"])] = [one for row in rows for one in _found(row, row["class"], places, least)]
    if not named and not numbered:
        raise InputError(f"--boxes {file} is empty: it names no picture; {_REMEDY}")
    return DetectorBoxes(named, numbered)


def _found(row: dict[str, Any], name: str | None, places: Mapping[str, int], least: float) -> list[Found]:
    """The box of a row, or none if its class, score or area excludes it."""
    x, y, width, height = (float(value) for value in row["bbox"])
    score = float(row["score"])
    # NaN is no number of pixels either.
    if not all(abs(value) <= FARTHEST_EDGE_PIXELS for value in (x, y, width, height)):
        raise ValueError(f"the box {excerpt(row['bbox'])}; x, y, width and height in pixels are needed")
    if not math.isfinite(score):
        raise ValueError(f"the score {excerpt(row['score'])}; a number is needed")
    if name is None or name not in places or score < least or width <= 0 or height <= 0:
        return []
    return [Found((x, y, x + width, y + height), places[name], score)]


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{excerpt(value)} in place of a whole number")
    return value
