"""Data without splits, divided into folds: each picture is held out once.

    OUT/data/fold_1/train/<class>/…   all but the first part
    OUT/data/fold_1/val/<class>/…     the first part
    OUT/data/folds.json               how it was divided, and what

A fold is a data set of its own, whose files are links to yours where the disk allows it, so that every verb can be
asked about it without mixing up what was held out. Every class is divided evenly, by the content of its files alone;
files with the same content stay together, or a model would be tested on what it has learned.
"""

import os
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from vitreous.data.image_set import ImageSet
from vitreous.data.layouts.held_out import content_places
from vitreous.errors import InputError
from vitreous.files.storage import read_stored_json, remove_path, write_json

FOLDS_JSON, UNFINISHED_FOLDS = "folds.json", ".unfinished_folds"


def fold_numbers(places: Sequence[float], classes: Sequence[str], folds: int) -> list[int]:
    """The fold in which each picture is held out, from 0; a place is a number by content."""
    members: dict[str, set[float]] = defaultdict(set)
    for place, name in zip(places, classes, strict=True):
        members[name].add(place)
    few = next((name for name, found in sorted(members.items()) if len(found) < folds), None)
    if few is not None:
        raise InputError(
            f"the class '{few}' has {len(members[few])} different pictures, and {folds} folds need as many; add some, "
            "or ask for fewer folds"
        )
    turn = {name: {place: rank % folds for rank, place in enumerate(sorted(found))} for name, found in members.items()}
    return [turn[name][place] for place, name in zip(places, classes, strict=True)]


def write_folds(images: ImageSet, folds: int, folder: Path) -> list[Path]:
    """The folder of every fold, written unless it is there already."""
    about = {"folds": folds, "fingerprint": images.fingerprint}
    names = [folder / f"fold_{number + 1}" for number in range(folds)]
    if (folder / FOLDS_JSON).is_file():
        if read_stored_json(folder / FOLDS_JSON) != about:
            raise InputError(f"{folder} holds other folds, or the data have changed since; give another --out")
        return names
    if folder.exists():
        raise InputError(f"{folder} holds other files and no {FOLDS_JSON}; give another --out")
    files = [images.encoded(index) for index in range(len(images))]
    if not all(isinstance(file, Path) for file in files):
        raise InputError("folds are made of pictures that are files, each with a class; give a folder with <class>/…")
    classes = [images.classes[images.target(index)["labels"]] for index in range(len(images))]
    held = fold_numbers(list(content_places(images)), classes, folds)
    staging = folder.with_name(UNFINISHED_FOLDS)
    remove_path(staging)
    for number, name in enumerate(names):
        for index, (file, label) in enumerate(zip(files, classes, strict=True)):
            place = staging / name.name / ("val" if held[index] == number else "train") / label
            place.mkdir(parents=True, exist_ok=True)
            _put(Path(str(file)), place / f"{index:07d}_{Path(str(file)).name}")
    write_json(staging / FOLDS_JSON, about)
    staging.replace(folder)
    return names


def _put(file: Path, place: Path) -> None:
    try:
        os.link(file.resolve(), place)
    except OSError:  # another disk, or one that has no links
        shutil.copyfile(file, place)
