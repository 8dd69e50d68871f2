"""The Oxford-IIIT pets, and data laid out like them: pictures whose names contain the class, and a trimap for each.

    DATA/images/Abyssinian_1.jpg, DATA/annotations/trimaps/Abyssinian_1.png
    DATA/annotations/trainval.txt, DATA/annotations/test.txt (the first word of a line is a picture's name)

The class of a picture is its name without the number. In a trimap 1 stands for the animal, 2 for the background and 3
for the border between them, which counts as neither. Without the lists a share is held out, see `held_out`.
"""

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous.data.image import SUFFIXES, ImageError
from vitreous.data.image_set import PairedFiles, digest, file_bytes, picture_files, require_split
from vitreous.data.layouts.base import Layout, expanded
from vitreous.data.layouts.mask_classes import IGNORE
from vitreous.data.layouts.masks import read_mask
from vitreous.errors import InputError
from vitreous.files.limits import MAX_LIST_BYTES
from vitreous.files.reading import excerpt, problem_of_path, read_bytes

_LISTS = {"train": ("trainval.txt", "train.txt"), "val": ("val.txt",), "test": ("test.txt",)}
PET = 1  # in a trimap
_TRIMAP_CLASSES = {1: 1, 2: 0, 3: IGNORE}  # value -> place in ("background", "pet")


def pets_lists(root: Path) -> dict[str, Path] | None:
    """Name of a split -> the file that lists its pictures; None if there are no pictures with trimaps."""
    if not (root / "images").is_dir() or not (root / "annotations" / "trimaps").is_dir():
        return None
    places = {split: [root / "annotations" / name for name in names] for split, names in _LISTS.items()}
    found = {split: next((file for file in files if file.is_file()), None) for split, files in places.items()}
    return {split: file for split, file in found.items() if file is not None}


class PetBreeds(PairedFiles):
    """The pictures of one split, or all where there are no lists; classes are in their names."""

    always_whole = False

    def __init__(self, root: Path, split: str, *, follow: bool = False) -> None:
        """`follow` as of `open_coco`."""
        self.pictures, self.trimaps = root / "images", root / "annotations" / "trimaps"
        there, self.passed_over = picture_files(self.pictures)
        by_stem = {Path(name).stem: name for name in there} | {_stem(name): name for name in there}
        lists = {name: _stems(file, follow) for name, file in (pets_lists(root) or {}).items()}
        self.split = require_split(split, lists, f"folder '{root}'") if lists else ""
        stems = lists.get(self.split, sorted({_stem(name) for name in there}))
        if not stems:
            raise InputError(f"split '{self.split}' of '{root}' lists no picture")
        self.files = [_file_of(stem, by_stem) for stem in stems]
        # The same for all splits, so that a class that one of them lacks shifts nothing.
        every = [stem for listed in lists.values() for stem in listed] or stems
        self.classes = tuple(sorted({_class_in(stem) for stem in every}))
        self._labels = {name: label for label, name in enumerate(self.classes)}

    @cached_property
    def fingerprint(self) -> str:
        return digest(f"{name}\0{file_bytes(self.encoded(index))}" for index, name in enumerate(self.files))

    def target(self, index: int) -> dict[str, Any]:
        return {"labels": self._labels[_class_in(_stem(self.files[index]))]}

    def object_mask(self, index: int) -> Image.Image | None:
        if not self.has_object_mask(index):
            return None
        shown = read_mask(self.target_file(index), self.encoded(index)) == PET
        return Image.fromarray(shown) if shown.any() else None

    def has_object_mask(self, index: int) -> bool:
        return self.target_file(index).is_file()

    def target_file(self, index: int) -> Path:
        return self.trimaps / f"{Path(self.files[index]).stem}.png"


class PetMasks(PetBreeds):
    """The same pictures with the class of each pixel."""

    always_whole = True

    def __init__(self, root: Path, split: str, *, follow: bool = False) -> None:
        super().__init__(root, split, follow=follow)
        self.classes = ("background", "pet")

    @cached_property
    def fingerprint(self) -> str:
        masks = digest(str(file_bytes(self.target_file(index))) for index in range(len(self)))
        return f"{super().fingerprint} masks {masks[:12]}"

    def target(self, index: int) -> dict[str, Any]:
        file = self.target_file(index)
        values = read_mask(file, self.encoded(index))
        odd = sorted(set(np.unique(values).tolist()) - set(_TRIMAP_CLASSES))
        if odd:
            raise ImageError(f"trimap '{file}' holds {', '.join(map(str, odd[:5]))}; 1 pet, 2 background, 3 border")
        table = np.array([IGNORE, *(_TRIMAP_CLASSES[value] for value in sorted(_TRIMAP_CLASSES))], np.uint8)
        return {"semantic": table[values]}


def _stem(path: str) -> str:
    """A path without the ending of a picture, written in one way: `./a/cat_1.jpg` and `a/cat_1` are the same."""
    return Path(path).with_suffix("").as_posix() if path.lower().endswith(SUFFIXES) else Path(path).as_posix()


def _file_of(stem: str, by_stem: dict[str, str]) -> str:
    """The picture of that path; failing that, one of that name in another folder of the pictures."""
    elsewhere = None if problem_of_path(stem, follow=False) else by_stem.get(Path(stem).name)
    return by_stem.get(stem) or elsewhere or f"{stem}{SUFFIXES[0]}"


def _class_in(stem: str) -> str:
    """`great_pyrenees_12` is a great_pyrenees, in whatever folder."""
    whole = Path(stem).name
    name, _, number = whole.rpartition("_")
    return name if name and number.isdecimal() else whole


def _stems(file: Path, follow: bool) -> list[str]:
    lines = os.fsdecode(read_bytes(file, MAX_LIST_BYTES)).splitlines()
    words = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    for word in words:
        if problem := problem_of_path(word, follow=follow):
            raise InputError(f"{file} names {excerpt(word)}, which {problem}")
    return list(dict.fromkeys(map(_stem, words)))


LAYOUT = Layout(
    name="Oxford pets",
    example="DIR/images/<class>_<number>.jpg, DIR/annotations/trimaps/*.png, DIR/annotations/{trainval,test}.txt",
    splits=lambda data: pets_lists(expanded(data)),
    open_split=lambda request: (PetMasks if request.targets == "semantic" else PetBreeds)(
        request.path, request.split, follow=request.follow
    ),
    targets=("labels", "semantic"),
    order=100,  # before masks: trimaps lie in a folder called annotations
)
