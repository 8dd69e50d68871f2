"""Objects in a picture: boxes, classes, masks and keypoints, as every reader of annotations gives them.

They are kept as annotated: a box without area or outside the picture stays in the list, because metrics count it as
other tools do. `Objects.usable` says which of them can be learnt from.

Legend: n objects, K keypoints of each, H W picture.
"""

import hashlib
import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.coco_masks import CocoSegmentation, decode_mask, encode, outline_length, require_drawable
from vitreous.data.detector_boxes import Found
from vitreous.data.image import ImageError
from vitreous.data.image_set import EncodedSet, ImageSet, Wrapped
from vitreous.errors import InputError
from vitreous.files.limits import MAX_MASK_PIXELS

SMALLEST_SIDE = 1e-3  # pixels of a box within the picture; thinner ones lead to divisions by zero

IndexPairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Objects:
    """The objects of one picture, in its pixels; pixel i covers i to i + 1."""

    boxes: NDArray[np.float64]  # (n, 4) x0 y0 x1 y1; double, so that metrics see what the file says
    labels: NDArray[np.int64]  # (n,) places in the data's classes
    crowd: NDArray[
        np.bool_
    ]  # (n,) many objects in one box, or one marked as difficult: neither required nor counted as wrong
    area: NDArray[np.float64]  # (n,) of the mask if there is one, else of the box
    ids: NDArray[np.int64]  # (n,) of the annotations
    masks: tuple[CocoSegmentation, ...] | None = None
    keypoints: NDArray[np.float32] | None = None  # (n, K, 3) x, y, 0 not there, 1 hidden, 2 visible
    keypoint_pairs: IndexPairs = ()  # (left, right) keypoints, swapped by a horizontal flip

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, which: Any) -> Self:
        """Some of the objects: a slice, an array of places or one of booleans."""
        places = np.arange(len(self))[which]
        return type(self)(
            self.boxes[places],
            self.labels[places],
            self.crowd[places],
            self.area[places],
            self.ids[places],
            None if self.masks is None else tuple(self.masks[place] for place in places),
            None if self.keypoints is None else self.keypoints[places],
            self.keypoint_pairs,
        )

    def usable(self, height: float, width: float) -> NDArray[np.bool_]:
        """(n,) those that show something within the picture."""
        limit = np.array([width, height, width, height])
        sides = np.diff(np.clip(self.boxes, 0, limit).reshape(-1, 2, 2), axis=1)[:, 0]  # (n, 2)
        large: NDArray[np.bool_] = np.all(sides >= SMALLEST_SIDE, axis=1)
        return large & np.all(np.isfinite(self.boxes), axis=1)

    def decoded_masks(self, height: int, width: int) -> NDArray[np.bool_]:
        """(n, H, W); an object whose data give no mask is its box."""
        if self.masks is None:
            raise ValueError("these objects have no masks")
        require_room(len(self), height, width)
        found = np.zeros((len(self), height, width), np.bool_)
        for place, segmentation in enumerate(self.masks):
            with self._mask_named(place):
                found[place] = decode_mask(segmentation, height, width)
        return found

    def require_drawable(self, height: int, width: int) -> None:
        """An ImageError where `decoded_masks` would give one for a mask, without drawing any."""
        for place, segmentation in enumerate(self.masks or ()):
            with self._mask_named(place):
                require_drawable(segmentation, height, width)

    def with_short_outlines(self, height: int, width: int) -> Self:
        """The same masks, as run lengths where an outline is longer than the picture has pixels.

        Metrics of others walk along outlines: one whose corners lie far away would take them hours and all memory.
        """
        shorter: dict[int, CocoSegmentation] = {}
        for place, segmentation in enumerate(self.masks or ()):
            with self._mask_named(place):
                if isinstance(segmentation, list) and outline_length(segmentation) > height * width:
                    shorter[place] = encode(decode_mask(segmentation, height, width))
        masks = tuple(shorter.get(place, mask) for place, mask in enumerate(self.masks or ()))
        return replace(self, masks=masks) if shorter else self

    @contextmanager
    def _mask_named(self, place: int) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, OverflowError) as reason:
            raise ImageError(f"the mask of annotation {self.ids[place]} cannot be used: {reason}") from reason


def require_room(count: int, height: int, width: int) -> None:
    """Masks are drawn all at once; refuse those that do not fit into memory."""
    if count * height * width > MAX_MASK_PIXELS:
        raise ImageError(
            f"{count:,} masks of {width} x {height} pixels are too many for one picture; at most {MAX_MASK_PIXELS:,} "
            "pixels in all are drawn: divide the picture, or scale it down"
        )


@dataclass(frozen=True)
class KeypointScheme:
    """Names of a data set's keypoints, and how they belong together."""

    names: tuple[str, ...]
    pairs: IndexPairs  # (left, right), swapped by a horizontal flip
    skeleton: IndexPairs = ()  # joined by lines in drawings


def mirrored_pairs(names: Sequence[str]) -> IndexPairs:
    """Indices of names that differ only in left and right."""
    places = {name.lower(): place for place, name in enumerate(names)}
    counterparts = [(place, places.get(name.replace("left", "right"))) for name, place in places.items()]
    return tuple((left, right) for left, right in counterparts if right not in (None, left))


class Record(NamedTuple):
    """A picture and what is in it."""

    name: str  # of the picture within the data
    file: Path
    size: tuple[int, int] | None  # (H, W) as the annotations say, if they do
    image_id: int
    objects: Objects


class PackedRecords:
    """Many records in one block of memory, which worker processes share instead of copying it page by page."""

    def __init__(self, records: Iterable[Record]) -> None:
        parts = [pickle.dumps(record, pickle.HIGHEST_PROTOCOL) for record in records]
        self._ends = np.cumsum([0, *map(len, parts)])
        self._bytes = np.frombuffer(b"".join(parts), np.uint8)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> Record:
        index = range(len(self))[index]
        return pickle.loads(self._bytes[self._ends[index] : self._ends[index + 1]].data)  # noqa: S301 - our own


class Faults:
    """Faults of annotation files. The first one raises an error if `strict`; otherwise all are collected."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.found: list[str] = []

    def note(self, text: str, remedy: str) -> None:
        if self.strict:
            raise InputError(f"{text}; {remedy}")
        self.found.append(text)


class ObjectSet(EncodedSet):
    """Pictures in files, with the objects in them."""

    always_whole = True

    def __init__(
        self,
        records: Iterable[Record],
        classes: tuple[str, ...],
        *,
        faults: Iterable[str] = (),
        category_ids: tuple[int, ...] = (),
        keypoints: KeypointScheme | None = None,
    ) -> None:
        """`faults` are those of the annotations that were left out for them, each with file and id."""
        self.classes, self.category_ids = classes, category_ids or tuple(range(1, len(classes) + 1))
        if keypoints is not None:
            self.keypoint_names, self.keypoint_pairs = keypoints.names, keypoints.pairs
            self.skeleton = keypoints.skeleton
        self._names: list[str] = []
        self._digest = hashlib.sha256()
        self.records = PackedRecords(self._noted(record) for record in records)
        self.faults = tuple(faults)  # now that all records are made

    def _noted(self, record: Record) -> Record:
        self._names.append(record.name)
        self._digest.update(f"{record.name}\0{record.size}\0".encode(errors="surrogateescape"))
        objects = record.objects
        for values in (objects.boxes, objects.labels, objects.crowd, objects.area, objects.keypoints):
            self._digest.update(b"" if values is None else np.ascontiguousarray(values).data)
        return record

    def __len__(self) -> int:
        return len(self.records)

    def name(self, index: int) -> str:
        return self._names[index]

    def target(self, index: int) -> dict[str, Any]:
        record = self.records[index]
        return {"objects": record.objects, "image_id": record.image_id}

    def encoded(self, index: int) -> Path:
        return self.records[index].file

    def picture(self, index: int, *, at_least: int | None = None) -> Image.Image:
        record, picture = self.records[index], super().picture(index)
        if record.size not in (None, (picture.height, picture.width)):
            height, width = record.size
            raise ImageError(
                f"image {str(record.file)!r} has {picture.width} x {picture.height} pixels, but its annotations say "
                f"{width} x {height}; one of the two belongs to another picture"
            )
        return picture

    @property
    def fingerprint(self) -> str:
        """Changes with any annotation, and when pictures are added, removed or renamed."""
        return self._digest.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        """For worker processes that are not forked; a running digest cannot be sent to them, and they need none."""
        return {key: value for key, value in self.__dict__.items() if key != "_digest"}


class OneObjectEach(Wrapped):
    """A sample for each object with keypoints, instead of one for each picture."""

    def __init__(self, images: ImageSet) -> None:
        super().__init__(images)
        self._places = [
            (index, place)
            for index in range(len(images))
            for place in np.flatnonzero(has_keypoints(images.target(index)["objects"])).tolist()
        ]

    def __len__(self) -> int:
        return len(self._places)

    def inner_index(self, index: int) -> int:
        return self._places[index][0]

    def target(self, index: int) -> dict[str, Any]:
        target, (_, place) = super().target(index), self._places[index]
        return {**target, "objects": target["objects"][[place]], "annotated": _unmasked(target["objects"])}


class OneBoxEach(Wrapped):
    """A sample for each box that a detector found, instead of one for each annotated object."""

    def __init__(self, images: ImageSet, found: Sequence[Sequence[Found]]) -> None:
        """`found` are the boxes in each picture."""
        super().__init__(images)
        self._boxes = [(index, one) for index, boxes in enumerate(found) for one in boxes]
        self._empty = [index for index, boxes in enumerate(found) if not boxes]

    def without_boxes(self) -> Iterator[tuple[int, Objects]]:
        """Number and annotations of each picture in which nothing was found."""
        for index in self._empty:
            target = self.images.target(index)
            yield target["image_id"], _unmasked(target["objects"])

    def __len__(self) -> int:
        return len(self._boxes)

    def inner_index(self, index: int) -> int:
        return self._boxes[index][0]

    def target(self, index: int) -> dict[str, Any]:
        target, (_, found) = super().target(index), self._boxes[index]
        single = object_in_box(found, len(self.keypoint_names), index + 1)
        annotated = _unmasked(target["objects"])
        return {**target, "objects": single, "annotated": annotated, "box_score": found.score}


def object_in_box(found: Found, keypoints: int, number: int) -> Objects:
    """An object of which only the box is known, from a detector."""
    x0, y0, x1, y1 = found.box
    objects = objects_of([{"bbox": [x0, y0, x1 - x0, y1 - y0], "id": number}], [found.label])
    return replace(objects, keypoints=np.zeros((1, keypoints, 3), np.float32))


def _unmasked(objects: Objects) -> Objects:
    """Without masks, which are large and useless for keypoints."""
    return replace(objects, masks=None)


def require_objects(images: ObjectSet, where: str) -> None:
    """Refuse pictures without a single usable object, from which nothing can be learnt."""
    for index in range(len(images)):
        record = images.records[index]
        height, width = record.size or (np.inf, np.inf)
        if (record.objects.usable(height, width) & ~record.objects.crowd).any():
            return
    raise InputError(f"{where} has no object to learn from: none at all, or only crowds and boxes without area")


def has_keypoints(objects: Objects) -> NDArray[np.bool_]:
    """(n,) those that are single objects with a box and at least one keypoint."""
    if objects.keypoints is None:
        return np.zeros(len(objects), np.bool_)
    return (objects.keypoints[:, :, 2] > 0).any(1) & ~objects.crowd & objects.usable(np.inf, np.inf)


def objects_of(
    rows: Sequence[dict[str, Any]],
    labels: Sequence[int],
    *,
    masks: bool = False,
    keypoints: KeypointScheme | None = None,
) -> Objects:
    """From rows as in COCO's annotations (`bbox` is x y width height); with `masks`, a row without one gets its box."""
    boxes = np.array([row["bbox"] for row in rows], np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    flat = np.abs(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)).tolist()
    areas = [row.get("area") for row in rows]
    count = 0 if keypoints is None else len(keypoints.names)
    points = np.zeros((len(rows), count, 3), np.float32)
    for place, row in enumerate(rows if count else ()):
        if row.get("keypoints"):
            points[place] = np.array(row["keypoints"], np.float32).reshape(count, 3)
    return Objects(
        boxes,
        np.array(labels, np.int64),
        np.array([bool(row.get("iscrowd", 0)) for row in rows], np.bool_),
        np.array([of_box if area is None else area for area, of_box in zip(areas, flat, strict=True)], np.float64),
        np.array([row["id"] for row in rows], np.int64),
        tuple(row.get("segmentation") or [_corners(*row["bbox"])] for row in rows) if masks else None,
        None if keypoints is None else points,
        () if keypoints is None else keypoints.pairs,
    )


def _corners(x: float, y: float, width: float, height: float) -> list[float]:
    return [x, y, x + width, y, x + width, y + height, x, y + height]
