"""COCO's annotations in files of any name, with their pictures in any folder.

    photos+labels/train.json+labels/val.json      pictures somewhere below photos
    labels/val.json                               pictures somewhere below labels, or else below its parent

Data of this kind are one word; `--annotations` of train, evaluate and check makes it from DATA and the files. The name
of a file, or of its folder, says which split it is (train, val, test); if neither does, the first is train, the second
val, the third test. A single file that is not called val or test has no splits: a share is held out, see `held_out`.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vitreous.data.annotations import ObjectSet
from vitreous.data.image import SUFFIXES
from vitreous.data.image_set import SPLITS, find_split, require_split
from vitreous.data.layouts.base import Layout
from vitreous.data.layouts.coco import read_coco
from vitreous.errors import InputError
from vitreous.files.reading import problem_of_path

JOIN, ENDING = "+", ".json"
SPLIT_WORDS = {word: split for split, words in SPLITS.items() for word in words}


class CocoFiles(NamedTuple):
    pictures: tuple[Path, ...]  # folders to look below, the first that has some counts
    files: tuple[Path, ...]

    @property
    def splits(self) -> dict[str, Path]:
        """Name of a split -> its file; the name is empty where there are no splits."""
        words = [_word_in(file) for file in self.files]
        if len(self.files) == 1:
            return {words[0] if words[0] in ("val", "test") else "": self.files[0]}
        if all(words) and len(set(words)) == len(words):
            return dict(zip(words, self.files, strict=True))
        if any(words) or len(self.files) > len(SPLITS):
            names = ", ".join(str(file) for file in self.files)
            raise InputError(f"cannot tell which of {names} is train, val and test; put these words in their names")
        return dict(zip(SPLITS, self.files, strict=False))


def with_annotations(data: str, annotations: Sequence[str | os.PathLike[str]] | str | os.PathLike[str]) -> str:
    """Data and files of annotations in one word; without such files the data alone."""
    given = [annotations] if isinstance(annotations, str | os.PathLike) else list(annotations)
    files = [os.fspath(file) for file in given]
    for file in files:
        if not Path(file).expanduser().is_file() or not file.lower().endswith(ENDING):
            raise InputError(f"--annotations {file} is not there or no {ENDING} file; give files in COCO's format")
    if files and not Path(data).expanduser().is_dir():
        raise InputError(f"--annotations goes with a folder of pictures as data, but '{data}' is no folder")
    return JOIN.join([data, *files])


def find_coco_files(data: str) -> CocoFiles | None:
    """What such a word stands for; None if it is something else."""
    files: list[Path] = []
    parts, part = data.split(JOIN), ""
    while parts:  # from the end; a name may hold the sign itself
        part = f"{parts.pop()}{JOIN}{part}" if part else parts.pop()
        path = Path(part).expanduser()
        if part.lower().endswith(ENDING) and path.is_file():
            files.insert(0, path)
            part = ""
    if not files or (part and not Path(part).expanduser().is_dir()):
        return None
    first = files[0].parent
    return CocoFiles((Path(part).expanduser(),) if part else (first, first.parent), tuple(files))


def open_coco_files(data: str, split: str, *, targets: str, strict: bool, follow: bool = False) -> ObjectSet:
    """The pictures of one split with their objects, or of all where there are no splits; `follow` as of `open_coco`."""
    found = find_coco_files(data)
    if found is None:
        raise InputError(f"'{data}' names no files of annotations")
    splits = found.splits
    name = "" if "" in splits else require_split(split, splits, f"data '{data}'")
    train = splits.get(find_split("train", splits) or "")
    return read_coco(
        splits[name],
        name,
        train=train,
        finder=lambda names: _finder(found.pictures, names, name, splits[name], follow),
        targets=targets,
        strict=strict,
        follow=follow,
    )


def _word_in(file: Path) -> str:
    """The split that the name of the file, or else of its folder, contains; empty if neither does."""
    for name in (file.stem, file.parent.name):
        named = {SPLIT_WORDS[word] for word in re.findall("[a-z]+", name.lower()) if word in SPLIT_WORDS}
        if len(named) == 1:
            return named.pop()
    return ""


# ---- pictures --------------------------------------------------------------------------------------------------


def _finder(
    roots: Sequence[Path], names: Sequence[str], split: str, file: Path, follow: bool = False
) -> Callable[[str], Path]:
    """From a `file_name` to the picture, wherever it lies below the first folder that has one of them."""
    elsewhere = [name for name in names if follow and problem_of_path(name, follow=False)]
    for root in roots:
        found = _folders_with(root, names)
        led = {name: root / name for name in elsewhere if (root / name).is_file()}
        if found or led:
            ranks = _ranks(root, found, split)
            places = led | {name: _chosen(folders, ranks, name, file) / name for name, folders in found.items()}
            # A missing one counts as unreadable when it is needed.
            return lambda name: places.get(name, root / Path(name).name)
    looked = " and ".join(str(root) for root in roots)
    raise InputError(f"no picture of {file} is there, such as {names[0]!r}; looked below {looked}")


def _folders_with(root: Path, names: Sequence[str]) -> dict[str, tuple[Path, ...]]:
    """Name -> the folders below which it lies, for names of which there is a file."""
    wanted: dict[str, list[str]] = {}
    for name in names:
        wanted.setdefault(name.rpartition("/")[2], []).append(name)
    found: dict[str, tuple[Path, ...]] = {}
    for parent, folders, files in os.walk(root):
        folders.sort()
        for last in files:
            for name in wanted.get(last, ()) if last.lower().endswith(SUFFIXES) else ():
                path = os.path.join(parent, last)
                if path.replace(os.sep, "/").endswith(f"/{name}"):
                    found[name] = (*found.get(name, ()), Path(path[: -len(name) - 1] or os.sep))
    return found


def _chosen(folders: Sequence[Path], ranks: Mapping[Path, tuple[int, int]], name: str, file: Path) -> Path:
    """The best of the folders with a picture of this name; a tie is refused."""
    best = max(folders, key=lambda folder: ranks[folder])
    if sum(ranks[folder] == ranks[best] for folder in folders) > 1:
        places = " and ".join(str(folder / name) for folder in folders[:3])
        raise InputError(f"{name!r} of {file} could be {places}; give the folder that holds the right ones")
    return best


def _ranks(root: Path, found: Mapping[str, Sequence[Path]], split: str) -> dict[Path, tuple[int, int]]:
    """A folder called like the split is best, one called like another split worst; then it counts how many it has."""
    counts = Counter(folder for folders in found.values() for folder in folders)
    ranks = {}
    for folder, count in counts.items():
        words = set(re.findall("[a-z]+", folder.relative_to(root).as_posix().lower())) & set(SPLIT_WORDS)
        ranks[folder] = (0 if not words else 1 if split and words & set(SPLITS[split]) else -1, count)
    return ranks


LAYOUT = Layout(
    name="COCO files",
    example="DIR --annotations TRAIN.json VAL.json, or DIR+TRAIN.json+VAL.json (pictures anywhere below DIR)",
    splits=lambda data: found.splits if (found := find_coco_files(data)) else None,
    open_split=lambda request: open_coco_files(
        request.data, request.split, targets=request.targets, strict=request.strict, follow=request.follow
    ),
    targets=("boxes", "keypoints"),
    order=70,
)
