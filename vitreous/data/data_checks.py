"""What can be wrong with a data set, found by examining every picture of it once.

Pictures are the same if their decoded pixels are: a copy in another lossless format, or with other metadata, is found.
For pictures that are nearly the same there is a small perceptual hash, the signs of the differences between neighbours
in a 9 x 8 grey version. Pictures of one colour have none, as they would all have the same.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitreous.data.annotations import Objects
from vitreous.data.image import ImageError, Stored, stored_as
from vitreous.data.image_set import ImageSet
from vitreous.data.layouts.mask_classes import IGNORE
from vitreous.data.loader import BatchSampler, Loader
from vitreous.data.metadata import WithMetadata
from vitreous.errors import InputError

PICTURES_PER_REPORT = 32  # that a worker examines before it reports
HELD_OUT = ("test", "val", "train")  # of copies in several splits, the one in the first of these stays
NEAR_BITS = 3  # out of 64 in which the hashes of nearly equal pictures may differ
BANDS = NEAR_BITS + 1  # two such hashes agree in at least one of so many parts
UNEVEN_RATIO = 10  # times as many pictures in the largest class as in the smallest
COMMON_MODES = ("RGB", "L")
BOX_TOLERANCE_PIXELS = 1.0  # by which a box may leave the picture unremarked: rounding

NOTE_KINDS = {  # whether it is a problem, and what follows "7 images"
    "annotations": (True, "with annotations that cannot be used"),
    "boxes": (True, "with boxes without area, inverted or outside the picture: nothing is learnt from those"),
    "beyond": (False, "with boxes that reach beyond the picture: cut off at its edge"),
    "keypoints": (False, "with keypoints outside the picture"),
    "empty": (False, "with nothing to learn: no object, or only crowds, or only ignored pixels"),
}


COPY_KINDS = {
    "conflicts": "in several classes",
    "leaks": "in several splits, so that results on held-out images mean less",
    "duplicates": "there more than once",
}


class Note(NamedTuple):
    kind: str  # one of NOTE_KINDS
    text: str


class ExaminedPicture(NamedTuple):
    """What there is to know about a picture of a data set."""

    split: str
    name: str
    label: str  # the class of the whole picture; empty where classes are of parts of it
    size: tuple[int, int]  # (W, H), upright; (0, 0) if it cannot be read
    pixels: bytes  # digest of size and pixels; empty if it cannot be read
    perceptual_hash: int | None  # None if it cannot be read, or is of one colour
    stored: Stored | None  # None for plain pixels
    error: str  # without the name of the picture
    parts: tuple[str, ...] = ()  # class of each object, or those that some pixel has
    notes: tuple[Note, ...] = ()  # about what is in it

    @property
    def classes(self) -> tuple[str, ...]:
        return (self.label,) if self.label else self.parts


class Finding(NamedTuple):
    """Something noteworthy: a problem, if training refuses the data or learns something wrong from it, or a remark."""

    kind: str
    problem: bool
    text: str
    images: tuple[str, ...] = ()
    leave_out: tuple[tuple[str, str], ...] = ()  # names, with reasons, of those that could be left out because of it


class Examiner:
    """Samples for a loader: each picture, examined."""

    def __init__(self, images: ImageSet, split: str) -> None:
        self.images, self.split = images, split

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> ExaminedPicture:
        images, name = self.images, self.images.name(index)
        target, notes = read_target(images, index)
        label = images.classes[target["labels"]] if "labels" in target else ""
        parts, stored = target_classes(target, images.classes), None
        encoded: Path | bytes | None = None
        try:
            encoded = images.encoded(index)
            stored = None if encoded is None else stored_as(encoded, name=name)
            picture = images.picture(index)
        except ImageError as error:
            reason = str(error)
            for called in (name, str(encoded)) if isinstance(encoded, Path) else (name,):
                reason = reason.removeprefix(f"image {called!r} ")
            return ExaminedPicture(self.split, name, label, (0, 0), b"", None, stored, reason, parts)
        digest = hashlib.blake2b(f"{picture.size}".encode() + picture.tobytes(), digest_size=16).digest()
        notes = (*notes, *notes_on(target, picture.height, picture.width), *_on_mask(images, index))
        return ExaminedPicture(
            self.split, name, label, picture.size, digest, perceptual_hash(picture), stored, "", parts, notes
        )


def examine_split(images: ImageSet, split: str, *, workers: int) -> Iterator[ExaminedPicture]:
    """Every picture of a split, in order."""
    loader = Loader(Examiner(images, split), BatchSampler(len(images), PICTURES_PER_REPORT), _listed, workers=workers)
    try:
        for batch in loader:
            yield from batch.images  # a list here, see _listed
    finally:
        loader.close()


def _listed(samples: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    return samples, {}


def perceptual_hash(picture: Image.Image) -> int | None:
    """64 bits, which differ little between pictures that look alike; None for a picture of one colour."""
    grey = np.asarray(picture.convert("L").resize((9, 8), Image.Resampling.BOX), np.int16)
    bits = (grey[:, 1:] > grey[:, :-1]).ravel()
    return int.from_bytes(np.packbits(bits).tobytes()) if bits.any() and not bits.all() else None


# ---- annotations of one picture ----------------------------------------------------------------------------------


def read_target(images: ImageSet, index: int) -> tuple[dict[str, Any], tuple[Note, ...]]:
    """The target of a picture, or what keeps it from being read."""
    try:
        return images.target(index), ()
    except ImageError as error:
        # A missing or damaged picture is reported as such; a target that needs its size then fails, too.
        return {}, () if str(error).startswith("image ") else (Note("annotations", str(error)),)


def _on_mask(images: ImageSet, index: int) -> Iterator[Note]:
    try:
        images.object_mask(index)
    except ImageError as error:
        yield Note("annotations", str(error))


def target_classes(target: dict[str, Any], classes: tuple[str, ...]) -> tuple[str, ...]:
    """The class of each object, each class that some pixel has, those of a picture that may have several; of a number,
    what it is called.
    """
    if "label_set" in target:
        return tuple(classes[label] for label in target["label_set"])
    if "value" in target:
        return classes
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


# ---- what it means ---------------------------------------------------------------------------------------------


def findings(
    splits: Mapping[str, ImageSet], examined: Iterable[ExaminedPicture], smallest: int, near: bool
) -> list[Finding]:
    """Problems first, then remarks."""
    pictures = list(examined)
    readable = [one for one in pictures if not one.error]
    bad = [one for one in pictures if one.error]
    found = _about("unreadable", True, bad, "cannot be read", lambda one: one.error)
    # Parts of one file share its faults.
    faults = tuple(dict.fromkeys(fault for images in splits.values() for fault in images.faults))
    if faults:
        text = _count(faults, "annotation is wrong", "annotations are wrong")
        found.append(Finding("faults", True, f"{text}; train and evaluate refuse them", faults))
    found += [*_noted(readable), *_classes(splits, pictures), *_copies(readable), *_stored(readable)]
    small = [one for one in readable if min(one.size) < smallest]
    text = f"with a side below {smallest} pixels"
    found += _about("small", False, small, text, lambda one: f"{one.size[0]} x {one.size[1]}")
    found += [*_balance(pictures), *_metadata(splits), *(_near(readable) if near else ())]
    return sorted(found, key=lambda finding: not finding.problem)


def _about(
    kind: str,
    problem: bool,
    pictures: list[ExaminedPicture],
    text: str,
    detail: Callable[[ExaminedPicture], str] | None = None,
) -> list[Finding]:
    """A finding about some pictures; none if there are none. Those of a problem can be left out because of it."""
    details = [(one.name, detail(one) if detail else "") for one in pictures]
    shown = tuple(f"{name}: {more}" if more else name for name, more in details)
    leave_out = tuple(details) if problem else ()
    return [Finding(kind, problem, f"{_count(pictures, 'image', 'images')} {text}", shown, leave_out)] if shown else []


def _noted(readable: list[ExaminedPicture]) -> Iterator[Finding]:
    """What is wrong with the annotations of single pictures, by kind."""
    for kind, (problem, text) in NOTE_KINDS.items():
        about = [(one, note) for one in readable for note in one.notes if note.kind == kind]
        if about:
            shown = tuple(f"{one.name}: {note.text}" if note.text else one.name for one, note in about)
            leave_out = tuple({one.name: note.text or text for one, note in about}.items())
            pictures = _count({one.name for one, _ in about}, "image", "images")
            yield Finding(kind, problem, f"{pictures} {text}", shown, leave_out)


def _classes(splits: Mapping[str, ImageSet], pictures: list[ExaminedPicture]) -> Iterator[Finding]:
    for one, other in combinations(splits, 2):
        for here, there in ((one, other), (other, one)):
            only = sorted(set(splits[here].classes) - set(splits[there].classes))
            if only:
                text = _count(only, f"class of {here} is", f"classes of {here} are")
                yield Finding("classes differ", True, f"{text} not in {there}", tuple(only))
    filled = {(one.split, name) for one in pictures for name in one.classes}
    whole = any(one.label for one in pictures)  # a class of objects may well be missing in a split
    alone = {images.classes for images in splits.values() if whole and len(images.classes) == 1}
    if alone:
        yield Finding("one class", True, "there is one class; a classifier needs two or more", min(alone))
    for split, images in splits.items():
        empty = tuple(name for name in images.classes if (split, name) not in filled)
        if empty:
            text = _count(empty, f"class of {split} has", f"classes of {split} have")
            yield Finding("empty classes", whole, f"{text} no {'images' if whole else 'objects'}", empty)


def _copies(readable: list[ExaminedPicture]) -> Iterator[Finding]:
    """Groups of the same picture: in several classes, else in several splits, else merely several times."""
    groups = defaultdict(list)
    for one in readable:
        groups[one.pixels].append(one)
    kinds: dict[str, list[list[ExaminedPicture]]] = {kind: [] for kind in COPY_KINDS}
    for group in groups.values():
        if len(group) > 1:
            several_splits = len({one.split for one in group}) > 1
            conflict = len({one.label for one in group}) > 1
            kinds["conflicts" if conflict else "leaks" if several_splits else "duplicates"].append(group)
    for kind, alike in kinds.items():
        if alike:
            named = [[f"{one.name} ({one.label})" if one.label else one.name for one in group] for group in alike]
            leave_out = tuple(entry for group in alike for entry in _superfluous(kind, group))
            text = f"{_count(alike, 'picture is', 'pictures are')} {COPY_KINDS[kind]}"
            yield Finding(kind, kind != "duplicates", text, tuple(map(" = ".join, named)), leave_out)


def _superfluous(kind: str, group: list[ExaminedPicture]) -> list[tuple[str, str]]:
    """Of a conflict all, as the right class is unknown; of a leak all but the held-out one; else all but the first."""
    best = min(group, key=lambda one: HELD_OUT.index(one.split))
    if kind == "conflicts":
        others = [next(other for other in group if other.label != one.label) for one in group]
        return [(a.name, f"the same picture is in class {b.label}") for a, b in zip(group, others, strict=True)]
    if kind == "leaks":
        return [(one.name, f"the same picture is {best.name}") for one in group if one.split != best.split]
    return [(one.name, f"the same picture is {group[0].name}") for one in group[1:]]


def _stored(readable: list[ExaminedPicture]) -> Iterator[Finding]:
    modes = defaultdict(list)
    for one in readable:
        if one.stored is not None and one.stored.mode not in COMMON_MODES:
            modes[one.stored.mode].append(one)
    for mode, images in sorted(modes.items()):
        yield from _about("stored oddly", False, images, f"stored as {mode}: converted to 8-bit RGB")
    turned = [one for one in readable if one.stored is not None and one.stored.orientation != 1]
    yield from _about("turned", False, turned, "stored lying down: turned upright by their EXIF orientation")


def _balance(pictures: list[ExaminedPicture]) -> Iterator[Finding]:
    counts: dict[str, int] = defaultdict(int)
    for one in pictures:
        if one.split == "train":
            for name in one.classes:
                counts[name] += 1
    if counts and max(counts.values()) > UNEVEN_RATIO * min(counts.values()):
        most, least = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
        what = "images" if any(one.label for one in pictures) else "objects"
        text = f"train has {counts[most]} {what} of {most} but {counts[least]} of {least}"
        yield Finding("uneven", False, text)


def _metadata(splits: Mapping[str, ImageSet]) -> Iterator[Finding]:
    """Rows about no picture, and pictures without a row. Only remarks: who asks for no attributes needs none."""
    files = defaultdict(list)
    for images in splits.values():
        if isinstance(images, WithMetadata):
            files[images.metadata_file].append(images)
    for file, parts in files.items():
        try:
            stray = sorted(parts[0].listed() - {name for part in parts for name in part.fitting()})
            bare = tuple(part.name(i) for part in parts for i in range(len(part)) if not part.attributes(i))
        except InputError as error:
            yield Finding("metadata", False, f"{error}; nothing can be asked by its columns")
            continue
        if stray:
            yield Finding("metadata", False, f"{_count(stray, 'row', 'rows')} of {file} about no picture", tuple(stray))
        if bare:
            yield Finding("metadata", False, f"{_count(bare, 'image', 'images')} without values in {file}", bare)


def _near(readable: list[ExaminedPicture]) -> list[Finding]:
    """Pairs whose hashes differ in a few bits; they agree in at least one band, so only such pairs are compared."""
    pairs: dict[tuple[int, int], int] = {}
    width = 64 // BANDS
    for band in range(BANDS):
        alike = defaultdict(list)
        for place, one in enumerate(readable):
            if one.perceptual_hash is not None:
                alike[one.perceptual_hash >> band * width & (1 << width) - 1].append(place)
        for places in alike.values():
            for a, b in combinations(places, 2):
                distance = (readable[a].perceptual_hash ^ readable[b].perceptual_hash).bit_count()  # type: ignore[operator]
                if distance <= NEAR_BITS and readable[a].pixels != readable[b].pixels:
                    pairs[a, b] = distance
    shown = tuple(f"{readable[a].name} ~ {readable[b].name}" for a, b in sorted(pairs))
    text = f"{_count(pairs, 'pair of pictures looks', 'pairs of pictures look')} nearly the same"
    return [Finding("near duplicates", False, text, shown)] if pairs else []


def _count(items: Sized, one: str, several: str) -> str:
    return f"{len(items)} {one if len(items) == 1 else several}"
