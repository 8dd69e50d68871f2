"""What every layout of data becomes: pictures with targets, addressed by index."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

from PIL import Image

from vitreous.data.image import ImageError, load_image
from vitreous.errors import InputError
from vitreous.files.reading import MACHINE_REMEDIES, reason_of

# A split -> the names it may have in the data, best first.
SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "test"), "test": ("test",)}


class ImageSet(ABC):
    """The pictures of one split. What index i stands for depends on nothing but the data."""

    classes: tuple[str, ...]
    # Lengths of stretches that lie in one file each, in the order of the indices; empty where it makes no difference.
    stretches: tuple[int, ...] = ()
    category_ids: tuple[int, ...] = ()  # of the classes in the data's own files, where they have numbers
    keypoint_names: tuple[str, ...] = ()
    keypoint_pairs: tuple[tuple[int, int], ...] = ()  # those that trade places in a mirror
    skeleton: tuple[tuple[int, int], ...] = ()  # pairs of keypoints joined by a line in drawings
    faults: tuple[str, ...] = ()  # of the annotations that were left out for them, each with file and id
    passed_over: tuple[str, ...] = ()  # endings of files that are pictures, but of a kind that is not read
    drawn_side: int | None = None  # shorter side of pictures that are drawn on demand, at the size that was asked for
    val_fraction: float | None = None  # share held out by content, where the data have no splits of their own

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Tells whether two sets hold the same pictures."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, index: int) -> str:
        """The picture's name within the data, e.g. train/cat/1.jpg."""

    @abstractmethod
    def target(self, index: int) -> dict[str, Any]:
        """What is to be learnt about the picture, known without looking at it."""

    @abstractmethod
    def picture(self, index: int, *, at_least: int | None = None) -> Image.Image:
        """The pixels, or an ImageError; `at_least` as in `load_image`."""

    def encoded(self, index: int) -> Path | bytes | None:
        """The picture as it is stored, or None if it is stored as plain pixels."""
        return None

    def object_mask(self, index: int) -> Image.Image | None:
        """Where the object that gives the picture its class is, white on black; None where nobody knows."""
        return None

    def __getitem__(self, index: int) -> tuple[Image.Image, dict[str, Any]]:
        return self.picture(index), self.target(index)

    def __init_subclass__(cls, **options: Any) -> None:
        """Whatever keeps a layout from understanding one of its files becomes an ImageError that names the picture."""
        super().__init_subclass__(**options)
        for method, what in READ_LATER.items():
            if method in cls.__dict__:
                setattr(cls, method, _guarded(cls.__dict__[method], what))


READ_LATER = {  # methods that read files when it is a picture's turn -> what they read
    "target": "the annotations of image",
    "picture": "image",
    "encoded": "image",
    "object_mask": "the mask of image",
}


def _guarded(method: Callable[..., Any], what: str) -> Callable[..., Any]:
    @wraps(method)
    def guarded(self: ImageSet, index: int, **options: Any) -> Any:
        try:
            return method(self, index, **options)
        except (InputError, ImportError):
            raise
        except Exception as error:
            if not -len(self) <= index < len(self):  # how Python's loops find the end
                raise
            if isinstance(error, OSError) and error.errno in MACHINE_REMEDIES:  # no fault of the picture
                raise InputError(
                    f"{what} {self.name(index)!r}: {reason_of(error)}; {MACHINE_REMEDIES[error.errno]}"
                ) from error
            raise ImageError(f"{what} {self.name(index)!r} cannot be read: {reason_of(error)}") from error

    return guarded


class EncodedSet(ImageSet):
    """Pictures stored in an image format."""

    @abstractmethod
    def encoded(self, index: int) -> Path | bytes: ...

    def picture(self, index: int, *, at_least: int | None = None) -> Image.Image:
        stored = self.encoded(index)
        # A file is best known by its own path; bytes have a name only within the data.
        return load_image(stored, name=self.name(index) if isinstance(stored, bytes) else None, at_least=at_least)


class Wrapped(ImageSet):
    """Another set as it is; a subclass changes what it is for."""

    def __init__(self, images: ImageSet) -> None:
        self.images, self.classes, self.stretches = images, images.classes, images.stretches
        self.category_ids, self.skeleton = images.category_ids, images.skeleton
        self.keypoint_names, self.keypoint_pairs = images.keypoint_names, images.keypoint_pairs
        self.faults, self.passed_over, self.val_fraction = images.faults, images.passed_over, images.val_fraction

    @property
    def fingerprint(self) -> str:
        return self.images.fingerprint

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        return self.images.name(index)

    def target(self, index: int) -> dict[str, Any]:
        return self.images.target(index)

    def picture(self, index: int, *, at_least: int | None = None) -> Image.Image:
        return self.images.picture(index, at_least=at_least)

    def encoded(self, index: int) -> Path | bytes | None:
        return self.images.encoded(index)

    def object_mask(self, index: int) -> Image.Image | None:
        return self.images.object_mask(index)


class Subset(Wrapped):
    """Some of the pictures of another set, by rising index."""

    def __init__(self, images: ImageSet, kept: Sequence[int]) -> None:
        super().__init__(images)
        self._kept = kept
        self.stretches = _shortened(images.stretches, kept)

    def __len__(self) -> int:
        return len(self._kept)

    def name(self, index: int) -> str:
        return super().name(self._kept[index])

    def target(self, index: int) -> dict[str, Any]:
        return super().target(self._kept[index])

    def picture(self, index: int, *, at_least: int | None = None) -> Image.Image:
        return super().picture(self._kept[index], at_least=at_least)

    def encoded(self, index: int) -> Path | bytes | None:
        return super().encoded(self._kept[index])

    def object_mask(self, index: int) -> Image.Image | None:
        return super().object_mask(self._kept[index])


class Without(Subset):
    """A set without the pictures of some names."""

    def __init__(self, images: ImageSet, names: Collection[str], because: str) -> None:
        found = [(index, images.name(index)) for index in range(len(images))]
        super().__init__(images, [index for index, name in found if name not in names])
        self.because, self.left_out = because, tuple(name for _, name in found if name in names)

    @cached_property
    def fingerprint(self) -> str:
        if not self.left_out:
            return self.images.fingerprint
        return f"{self.images.fingerprint} without {len(self.left_out)} ({digest(self.left_out)[:12]})"


def _shortened(stretches: tuple[int, ...], kept: Sequence[int]) -> tuple[int, ...]:
    """How many of each stretch are kept; both are in rising order."""
    lengths, end, position = [], 0, 0
    for stretch in stretches:
        end, start = end + stretch, position
        while position < len(kept) and kept[position] < end:
            position += 1
        lengths.append(position - start)
    return tuple(length for length in lengths if length)


def digest(lines: Iterable[str]) -> str:
    """One sha256 over lines of text; names of files need not be Unicode."""
    total = hashlib.sha256()
    for line in lines:
        total.update(f"{line}\n".encode(errors="surrogateescape"))
    return total.hexdigest()


def find_split(split: str, there: Collection[str]) -> str | None:
    """The name under which a split is there, or None."""
    if split not in SPLITS:
        raise InputError(f"unknown split '{split}'; accepted: {', '.join(SPLITS)}")
    return next((name for name in SPLITS[split] if name in there), None)


def require_split(split: str, there: Collection[str], where: str) -> str:
    name = find_split(split, there)
    if name is None:
        wanted, found = " or ".join(SPLITS[split]), ", ".join(sorted(there)) or "nothing"
        raise InputError(f"{where} has no split '{split}'; looked for {wanted}, found {found}")
    return name


def own_splits(there: Collection[str]) -> tuple[str, ...]:
    """The splits that are there; `test` does not count as `val` too."""
    found = {split: find_split(split, there) for split in SPLITS}
    return tuple(split for split, name in found.items() if name and (split != "val" or name != found["test"]))
