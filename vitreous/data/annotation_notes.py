"""What is noteworthy about the objects or the mask of a single picture."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from vitreous.data.annotations import Objects
from vitreous.data.image import ImageError
from vitreous.data.image_set import ImageSet
from vitreous.data.layouts.mask_classes import IGNORE

BOX_TOLERANCE_PIXELS = 1.0  # by which a box may leave the picture unremarked: rounding

NOTE_KINDS = {  # whether it is a problem, and what follows "7 images"
    "annotations": (True, "with annotations that cannot be used"),
    "boxes": (True, "with boxes without area, inverted or outside the picture: nothing is learnt from those"),
    "beyond": (False, "with boxes that reach beyond the picture: cut off at its edge"),
    "keypoints": (False, "with keypoints outside the picture"),
    "empty": (False, "with nothing to learn: no object, or only crowds, or only ignored pixels"),
}


class Note(NamedTuple):
    kind: str  # one of NOTE_KINDS
    text: str


def read_target(images: ImageSet, index: int) -> tuple[dict[str, Any], tuple[Note, ...]]:
    """The target of a picture, or what keeps it from being read."""
    try:
        return images.target(index), ()
    except ImageError as error:
        # A missing or damaged picture is reported as such; a target that needs its size then fails, too.
        return {}, () if str(error).startswith("image ") else (Note("annotations", str(error)),)


def target_classes(target: dict[str, Any], classes: tuple[str, ...]) -> tuple[str, ...]:
    """The class of each object, or each class that some pixel has."""
    if "objects" in target:
        return tuple(classes[label] for label in target["objects"].labels)
    if "semantic" in target:
        return tuple(classes[number] for number in np.unique(target["semantic"]) if number != IGNORE)
    return ()


def notes_on(target: dict[str, Any], height: int, width: int) -> tuple[Note, ...]:
    """What is to be said about a target that could be read."""
    if "semantic" in target:
        return () if (target["semantic"] != IGNORE).any() else (Note("empty", ""),)
    return tuple(_on_objects(target["objects"], height, width)) if "objects" in target else ()


def _on_objects(objects: Objects, height: int, width: int) -> Iterator[Note]:
    usable = objects.usable(height, width)
    if not (usable & ~objects.crowd).any():
        yield Note("empty", "")
    limit = np.array([width, height, width, height])
    past = (np.maximum(-objects.boxes, objects.boxes - limit) > BOX_TOLERANCE_PIXELS).any(1)
    for place in np.flatnonzero(~usable):
        yield Note("boxes", f"annotation {objects.ids[place]} is {_kind_of_bad(objects.boxes[place])}")
    for place in np.flatnonzero(usable & past):
        yield Note("beyond", f"annotation {objects.ids[place]} is {_edges(objects.boxes[place])}")
    if objects.masks is not None:
        try:
            objects.require_drawable(height, width)
        except ImageError as error:
            yield Note("annotations", str(error))
    if objects.keypoints is not None:
        x, y, seen = np.moveaxis(objects.keypoints, -1, 0)  # (n, K) each
        outside = ((x < 0) | (y < 0) | (x > width) | (y > height)) & (seen > 0)
        for place in np.flatnonzero(outside.any(1)):
            yield Note("keypoints", f"annotation {objects.ids[place]} has {outside[place].sum()} of them")


def _kind_of_bad(box: Any) -> str:
    across, down = box[2] - box[0], box[3] - box[1]
    problem = "inverted" if min(across, down) < 0 else "without area" if min(across, down) == 0 else "outside"
    return f"{problem}: {_edges(box)}"


def _edges(box: Any) -> str:
    return f"x {box[0]:g} to {box[2]:g}, y {box[1]:g} to {box[3]:g}"
