"""What every layout of data becomes: pictures with targets, accessed by index."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from vitreous.data.image import READ_FORMATS, SUFFIXES, ImageError, load_image
from vitreous.errors import InputError
from vitreous.files.reading import MACHINE_REMEDIES, reason_of

# A split -> the names it may have in the data, best first.
SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "test"), "test": ("test",)}
NAMES_OF_SPLITS = tuple(dict.fromkeys(name for names in SPLITS.values() for name in names))
# Endings of pictures that are not read; such files are counted and reported.
OTHER_PICTURES = (
    *(".gif", ".jp2", ".j2k", ".jxl", ".svg", ".psd", ".ppm", ".pgm", ".pnm", ".tga", ".exr", ".dcm", ".hif"),
    *(".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2"),
)


class ImageSet(ABC):
    """The pictures of one split. What index i stands for depends on nothing but the data."""

    classes: tuple[str, ...]
    # How many pictures lie in each file, in the order of the indices; empty where every picture has its own.
    file_lengths: tuple[int, ...] = ()
    group_members: tuple[int, ...] = ()  # the group of each picture, where groups are to be drawn equally often
    category_ids: tuple[int, ...] = ()  # of the classes in the data's own files, where they have numbers
    keypoint_names: tuple[str, ...] = ()
    keypoint_pairs: tuple[tuple[int, int], ...] = ()  # (left, right), swapped by a horizontal flip
    skeleton: tuple[tuple[int, int], ...] = ()  # pairs of keypoints joined by a line in drawings
    faults: tuple[str, ...] = ()  # of annotations that were left out, each with file and id
    passed_over: tuple[str, ...] = ()  # endings of picture files in formats that are not read
    drawn_side: int | None = None  # shorter side of pictures that are drawn on demand
    val_fraction: float | None = None  # share held out by content, where the data have no splits of their own
    attribute_names: tuple[str, ...] = ()  # what else is known about the pictures, besides their targets

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Equal for two sets if they hold the same pictures and targets."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, index: int) -> str:
        """The picture's name within the data, e.g. train/cat/1.jpg."""

    @abstractmethod
    def target(self, index: int) -> dict[str, Any]:
        """What is to be learnt about the picture, known without decoding it."""

    @abstractmethod
    def picture(self, index: int, *, at_least: int | None = None) -> Image.Image:
        """The pixels, or an ImageError; `at_least` as in `load_image`."""

    def encoded(self, index: int) -> Path | bytes | None:
        """The picture as it is stored, or None if it is stored as plain pixels."""
        return None

    def object_mask(self, index: int) -> Image.Image | None:
        """Mask of the object that gives the picture its class, white on black; None if unknown."""
        return None

    def has_object_mask(self, index: int) -> bool:
        """Whether there is such a mask; layouts can tell without decoding it, and it may turn out to be empty."""
        return self.object_mask(index) is not None

    def attributes(self, index: int) -> Mapping[str, str]:
        """What else is known about the picture, such as where it was taken: those of `attribute_names` it has."""
        return {}

    def __getitem__(self, index: int) -> tuple[Image.Image, dict[str, Any]]:
        return self.picture(index), self.target(index)

    def __init_subclass__(cls, **options: Any) -> None:
        """Whatever fails while a layout reads a picture's files becomes an ImageError that names the picture."""
        super().__init_subclass__(**options)
        for method, what in READ_LATER.items():
            if method in cls.__dict__:
                setattr(cls, method, _guarded(cls.__dict__[method], what))


READ_LATER = {  # methods that read files when a picture is needed -> what they read
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
            if not -len(self) <= index < len(self):  # Python's loops find the end this way
                raise
            if isinstance(error, OSError) and error.errno in MACHINE_REMEDIES:  # no fault of the picture
                raise InputError(
                    f"{what} {self.name(index)!r}: {reason_of(error)}; {MACHINE_REMEDIES[error.errno]}"
                ) from error
            raise ImageError(f"{what} {self.name(index)!r} cannot be read: {reason_of(error)}") from error

    return guarded


class EncodedSet(ImageSet):
    """Pictures stored in an image format."""

    always_whole = False  # never reduced, because the targets are in pixels of the whole picture

    @abstractmethod
    def encoded(self, index: int) -> Path | bytes: ...

    def picture(self, index: int, *, at_least: int | None = None) -> Image.Image:
        stored = self.encoded(index)
        # A file is best known by its own path; bytes have a name only within the data.
        name = self.name(index) if isinstance(stored, bytes) else None
        return load_image(stored, name=name, at_least=None if self.always_whole else at_least)


class PairedFiles(EncodedSet):
    """Pictures below a folder, each with a file of its own that says what it shows."""

    always_whole = True
    pictures: Path
    files: list[str]  # below `pictures`
    split: str = ""  # first part of the pictures' names, where there are splits

    @abstractmethod
    def target_file(self, index: int) -> Path:
        """Of a picture without one, where it would be."""

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        return f"{self.split}/{self.files[index]}" if self.split else self.files[index]

    def encoded(self, index: int) -> Path:
        return self.pictures / self.files[index]

    @cached_property
    def fingerprint(self) -> str:
        """Changes when files are added, removed or renamed, or change their length."""
        return digest(
            f"{name}\0{file_bytes(self.encoded(index))}\0{file_bytes(self.target_file(index))}"
            for index, name in enumerate(self.files)
        )


class Wrapped(ImageSet):
    """Another set, unchanged; subclasses change parts of it."""

    def __init__(self, images: ImageSet) -> None:
        self.images, self.classes, self.file_lengths = images, images.classes, images.file_lengths
        self.category_ids, self.skeleton = images.category_ids, images.skeleton
        self.keypoint_names, self.keypoint_pairs = images.keypoint_names, images.keypoint_pairs
        self.faults, self.passed_over, self.val_fraction = images.faults, images.passed_over, images.val_fraction

    @property
    def fingerprint(self) -> str:
        return self.images.fingerprint

    def __len__(self) -> int:
        return len(self.images)

    def inner_index(self, index: int) -> int:
        """Index of the picture in the wrapped set."""
        return index

    def name(self, index: int) -> str:
        return self.images.name(self.inner_index(index))

    def target(self, index: int) -> dict[str, Any]:
        return self.images.target(self.inner_index(index))

    def picture(self, index: int, *, at_least: int | None = None) -> Image.Image:
        return self.images.picture(self.inner_index(index), at_least=at_least)

    def encoded(self, index: int) -> Path | bytes | None:
        return self.images.encoded(self.inner_index(index))

    def object_mask(self, index: int) -> Image.Image | None:
        return self.images.object_mask(self.inner_index(index))

    def has_object_mask(self, index: int) -> bool:
        return self.images.has_object_mask(self.inner_index(index))

    @property
    def attribute_names(self) -> tuple[str, ...]:  # type: ignore[override]  # of a file that is read when it is needed
        return self.images.attribute_names

    def attributes(self, index: int) -> Mapping[str, str]:
        return self.images.attributes(self.inner_index(index))


class Subset(Wrapped):
    """Some of the pictures of another set, by rising index."""

    def __init__(self, images: ImageSet, kept: Sequence[int]) -> None:
        super().__init__(images)
        self._kept = kept
        self.file_lengths = _remaining_lengths(images.file_lengths, kept)

    def __len__(self) -> int:
        return len(self._kept)

    def inner_index(self, index: int) -> int:
        return self._kept[index]


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


def _remaining_lengths(file_lengths: tuple[int, ...], kept: Sequence[int]) -> tuple[int, ...]:
    """How many pictures of each file are kept; `kept` rises."""
    lengths, end, position = [], 0, 0
    for length in file_lengths:
        end, start = end + length, position
        while position < len(kept) and kept[position] < end:
            position += 1
        lengths.append(position - start)
    return tuple(left for left in lengths if left)


def file_bytes(file: Path) -> int:
    """-1 for a file that is missing."""
    return file.stat().st_size if file.is_file() else -1


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


# ---- files -----------------------------------------------------------------------------------------------------


class PictureFiles(NamedTuple):
    """The picture files below a folder, in an order that does not depend on the file system."""

    names: list[str]  # paths relative to the folder, with forward slashes, sorted
    passed_over: tuple[str, ...]  # endings of picture files in formats that are not read


def picture_files(folder: Path) -> PictureFiles:
    """Files in the folder and below it; names that begin with a dot are skipped."""
    names, passed_over = [], []
    for path in _files_below(folder):
        ending = os.path.splitext(path)[1].lower()
        if ending in SUFFIXES:
            names.append(Path(path).relative_to(folder).as_posix())
        elif ending in OTHER_PICTURES:
            passed_over.append(ending)
    return PictureFiles(sorted(names), tuple(passed_over))


def holds_pictures(folder: Path, *, deeper: bool = True) -> bool:
    """Whether there is a picture file in the folder, or below it; the search ends at the first."""
    files = _files_below(folder) if deeper else (entry.path for entry in os.scandir(folder) if entry.is_file())
    return any(path.lower().endswith(SUFFIXES) for path in files)


def paired_folders(
    root: Path, places: Iterable[tuple[str, str]], endings: tuple[str, ...], splits: Iterable[str] = NAMES_OF_SPLITS
) -> dict[str, tuple[Path, Path]]:
    """Name of a split -> folders of its pictures and of its targets: the first place with files of such endings."""
    found: dict[str, tuple[Path, Path]] = {}
    for split in splits:
        for names in places:
            pictures, targets = (root / name.format(split) for name in names)
            if split in found or not pictures.is_dir():
                continue
            if any(path.lower().endswith(endings) for path in _files_below(targets)):
                found[split] = pictures, targets
    return found


def describe_passed_over(passed_over: Sequence[str]) -> str:
    """How many files were skipped, and why."""
    count, kinds = len(passed_over), ", ".join(f"{n} {ending}" for ending, n in sorted(Counter(passed_over).items()))
    return f"{count} {'file' if count == 1 else 'files'} passed over ({kinds}): {READ_FORMATS}"


def _files_below(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.join(parent, name) for name in files if not name.startswith("."))
