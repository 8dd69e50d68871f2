"""What can be wrong with a data set, found by looking at every picture of it once.

Pictures are the same if their decoded pixels are: a copy in another lossless format, or with other metadata, is found.
`look` is a small perceptual hash (differences between neighbours of a 9 x 8 grey version) for pictures that are nearly
the same; pictures of one colour have none, as they would all look alike.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitreous.data.annotation_notes import KINDS, Note, notes_on, parts_of, read_target
from vitreous.data.image import ImageError, Stored, stored_as
from vitreous.data.image_set import ImageSet
from vitreous.data.loader import BatchSampler, Loader

BATCH = 32  # pictures a worker looks at before it reports
HELD_OUT = ("test", "val", "train")  # of two copies in different splits, the one in the earlier of these is worth more
NEAR = 3  # differing bits out of 64 up to which two pictures look the same
BANDS = NEAR + 1  # two such hashes agree in at least one of so many parts
UNEVEN = 10  # times as many pictures in the largest class as in the smallest
COMMON_MODES = ("RGB", "L")


class Seen(NamedTuple):
    """One picture, looked at."""

    split: str
    name: str
    label: str  # the class of the whole picture; empty where classes are of parts of it
    size: tuple[int, int]  # (W, H), upright; (0, 0) if it cannot be read
    pixels: bytes  # digest of size and pixels; empty if it cannot be read
    look: int | None
    stored: Stored | None  # None for plain pixels
    error: str  # without the name of the picture
    parts: tuple[str, ...] = ()  # class of each object, or those that some pixel has
    notes: tuple[Note, ...] = ()  # about what is in it

    @property
    def classes(self) -> tuple[str, ...]:
        return (self.label,) if self.label else self.parts


class Finding(NamedTuple):
    """Something noteworthy. A problem makes training refuse the data or learn something wrong; a remark does not."""

    kind: str
    problem: bool
    text: str
    images: tuple[str, ...] = ()
    leave_out: tuple[tuple[str, str], ...] = ()  # names, with reasons, of those that could be left out because of it


class Looker:
    """Samples for a loader: what is seen of each picture."""

    def __init__(self, images: ImageSet, split: str) -> None:
        self.images, self.split = images, split

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Seen:
        images, name = self.images, self.images.name(index)
        target, notes = read_target(images, index)
        label = images.classes[target["labels"]] if "labels" in target else ""
        parts, stored = parts_of(target, images.classes), None
        encoded: Path | bytes | None = None
        try:
            encoded = images.encoded(index)
            stored = None if encoded is None else stored_as(encoded, name=name)
            picture = images.picture(index)
        except ImageError as error:
            reason = str(error)
            for called in (name, str(encoded)) if isinstance(encoded, Path) else (name,):
                reason = reason.removeprefix(f"image {called!r} ")
            return Seen(self.split, name, label, (0, 0), b"", None, stored, reason, parts)
        digest = hashlib.blake2b(f"{picture.size}".encode() + picture.tobytes(), digest_size=16).digest()
        notes = (*notes, *notes_on(target, picture.height, picture.width))
        return Seen(self.split, name, label, picture.size, digest, look(picture), stored, "", parts, notes)


def look_at(images: ImageSet, split: str, *, workers: int) -> Iterator[Seen]:
    """Every picture of a split, in order."""
    loader = Loader(Looker(images, split), BatchSampler(len(images), BATCH), _listed, workers=workers)
    try:
        for batch in loader:
            yield from batch.images  # a list here, see _listed
    finally:
        loader.close()


def _listed(samples: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    return samples, {}


def look(picture: Image.Image) -> int | None:
    grey = np.asarray(picture.convert("L").resize((9, 8), Image.Resampling.BOX), np.int16)
    bits = (grey[:, 1:] > grey[:, :-1]).ravel()
    return int.from_bytes(np.packbits(bits).tobytes()) if bits.any() and not bits.all() else None


# ---- what it means ---------------------------------------------------------------------------------------------


def findings(splits: Mapping[str, ImageSet], seen: Iterable[Seen], smallest: int, near: bool) -> list[Finding]:
    """Problems first, then remarks."""
    pictures = list(seen)
    readable = [one for one in pictures if not one.error]
    found = [*_unreadable(pictures), *_faults(splits), *_noted(readable)]
    found += [*_classes(splits, pictures), *_copies(readable)]
    found += [*_stored(readable), *_small(readable, smallest), *_balance(pictures)]
    if near:
        found += _near(readable)
    return sorted(found, key=lambda finding: not finding.problem)


def _unreadable(pictures: list[Seen]) -> Iterator[Finding]:
    bad = [one for one in pictures if one.error]
    if bad:
        leave_out = tuple((one.name, one.error) for one in bad)
        shown = tuple(f"{one.name}: {one.error}" for one in bad)
        yield Finding("unreadable", True, f"{_images(bad)} cannot be read", shown, leave_out)


def _faults(splits: Mapping[str, ImageSet]) -> Iterator[Finding]:
    """What training would refuse as a whole."""
    # Parts of one file share its faults.
    faults = tuple(dict.fromkeys(fault for images in splits.values() for fault in images.faults))
    if faults:
        text = _count(faults, "annotation is wrong", "annotations are wrong")
        yield Finding("faults", True, f"{text}; train and evaluate refuse them", faults)


def _noted(readable: list[Seen]) -> Iterator[Finding]:
    """What is wrong with the annotations of single pictures, by kind."""
    for kind, (problem, text) in KINDS.items():
        about = [(one, note) for one in readable for note in one.notes if note.kind == kind]
        if about:
            shown = tuple(f"{one.name}: {note.text}" if note.text else one.name for one, note in about)
            leave_out = tuple({one.name: note.text or text for one, note in about}.items())
            pictures = len({one.name for one, _ in about})
            yield Finding(
                kind, problem, f"{pictures} {'image' if pictures == 1 else 'images'} {text}", shown, leave_out
            )


def _classes(splits: Mapping[str, ImageSet], pictures: list[Seen]) -> Iterator[Finding]:
    for one, other in combinations(splits, 2):
        for here, there in ((one, other), (other, one)):
            only = sorted(set(splits[here].classes) - set(splits[there].classes))
            if only:
                text = _count(only, f"class of {here} is", f"classes of {here} are")
                yield Finding("classes differ", True, f"{text} not in {there}", tuple(only))
    filled = {(one.split, name) for one in pictures for name in one.classes}
    whole = any(one.label for one in pictures)  # of objects a class may well be rare
    alone = {images.classes for images in splits.values() if whole and len(images.classes) == 1}
    if alone:
        yield Finding("one class", True, "there is one class; a classifier needs two or more", min(alone))
    for split, images in splits.items():
        empty = tuple(name for name in images.classes if (split, name) not in filled)
        if empty:
            text = _count(empty, f"class of {split} has", f"classes of {split} have")
            yield Finding("empty classes", whole, f"{text} no {'images' if whole else 'objects'}", empty)


def _copies(readable: list[Seen]) -> Iterator[Finding]:
    """Groups of the same picture: in several classes, else in several splits, else merely several times."""
    groups = defaultdict(list)
    for one in readable:
        groups[one.pixels].append(one)
    kinds: dict[str, list[list[Seen]]] = {"conflicts": [], "leaks": [], "duplicates": []}
    for group in groups.values():
        if len(group) > 1:
            several_splits = len({one.split for one in group}) > 1
            conflict = len({one.label for one in group}) > 1
            kinds["conflicts" if conflict else "leaks" if several_splits else "duplicates"].append(group)
    texts = {
        "conflicts": "in several classes",
        "leaks": "in several splits, so that results on held-out images mean less",
        "duplicates": "there more than once",
    }
    for kind, alike in kinds.items():
        if alike:
            shown = tuple(" = ".join(_called(one) for one in group) for group in alike)
            leave_out = tuple(entry for group in alike for entry in _superfluous(kind, group))
            yield Finding(
                kind,
                kind != "duplicates",
                f"{_count(alike, 'picture is', 'pictures are')} {texts[kind]}",
                shown,
                leave_out,
            )


def _called(one: Seen) -> str:
    return f"{one.name} ({one.label})" if one.label else one.name


def _superfluous(kind: str, group: list[Seen]) -> list[tuple[str, str]]:
    """Of a conflict all, as nobody knows which is right; of a leak all but the held-out; else all but the first."""
    best = min(group, key=lambda one: HELD_OUT.index(one.split))
    if kind == "conflicts":
        return [(one.name, f"the same picture is in class {_another(one, group).label}") for one in group]
    if kind == "leaks":
        return [(one.name, f"the same picture is {best.name}") for one in group if one.split != best.split]
    return [(one.name, f"the same picture is {group[0].name}") for one in group[1:]]


def _another(one: Seen, group: list[Seen]) -> Seen:
    return next(other for other in group if other.label != one.label)


def _stored(readable: list[Seen]) -> Iterator[Finding]:
    modes = defaultdict(list)
    for one in readable:
        if one.stored is not None and one.stored.mode not in COMMON_MODES:
            modes[one.stored.mode].append(one)
    for mode, images in sorted(modes.items()):
        text = f"{_images(images)} stored as {mode}: converted to 8-bit RGB"
        yield Finding("stored oddly", False, text, _names(images))
    turned = [one for one in readable if one.stored is not None and one.stored.orientation != 1]
    if turned:
        text = f"{_images(turned)} stored lying down: turned upright by their EXIF orientation"
        yield Finding("turned", False, text, _names(turned))


def _small(readable: list[Seen], smallest: int) -> Iterator[Finding]:
    small = [one for one in readable if min(one.size) < smallest]
    if small:
        shown = tuple(f"{one.name}: {one.size[0]} x {one.size[1]}" for one in small)
        yield Finding("small", False, f"{_images(small)} with a side below {smallest} pixels", shown)


def _balance(pictures: list[Seen]) -> Iterator[Finding]:
    counts: dict[str, int] = defaultdict(int)
    for one in pictures:
        if one.split == "train":
            for name in one.classes:
                counts[name] += 1
    if counts and max(counts.values()) > UNEVEN * min(counts.values()):
        most, least = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
        what = "images" if any(one.label for one in pictures) else "objects"
        text = f"train has {counts[most]} {what} of {most} but {counts[least]} of {least}"
        yield Finding("uneven", False, text)


def _near(readable: list[Seen]) -> list[Finding]:
    """Pairs whose hashes differ in a few bits; they agree in at least one band, so only such pairs are compared."""
    pairs: dict[tuple[int, int], int] = {}
    width = 64 // BANDS
    for band in range(BANDS):
        alike = defaultdict(list)
        for place, one in enumerate(readable):
            if one.look is not None:
                alike[one.look >> band * width & (1 << width) - 1].append(place)
        for places in alike.values():
            for a, b in combinations(places, 2):
                distance = (readable[a].look ^ readable[b].look).bit_count()  # type: ignore[operator]
                if distance <= NEAR and readable[a].pixels != readable[b].pixels:
                    pairs[a, b] = distance
    shown = tuple(f"{readable[a].name} ~ {readable[b].name}" for a, b in sorted(pairs))
    text = f"{_count(pairs, 'pair of pictures looks', 'pairs of pictures look')} nearly the same"
    return [Finding("near duplicates", False, text, shown)] if pairs else []


def _images(pictures: list[Seen]) -> str:
    return _count(pictures, "image", "images")


def _count(items: Sized, one: str, several: str) -> str:
    return f"{len(items)} {one if len(items) == 1 else several}"


def _names(pictures: list[Seen]) -> tuple[str, ...]:
    return tuple(one.name for one in pictures)
