"""The picture files below a folder, in an order that does not depend on the file system."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from vitreous.data.image import READ_FORMATS, SUFFIXES

# Endings of pictures that are not read; such files are counted and reported.
OTHER_PICTURES = (
    *(".gif", ".jp2", ".j2k", ".jxl", ".svg", ".psd", ".ppm", ".pgm", ".pnm", ".tga", ".exr", ".dcm", ".hif"),
    *(".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2"),
)


class PictureFiles(NamedTuple):
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
    return any(islice((True for path in files if path.lower().endswith(SUFFIXES)), 1))


def describe_passed_over(passed_over: Sequence[str]) -> str:
    """How many files were skipped, and why."""
    count, kinds = len(passed_over), ", ".join(f"{n} {ending}" for ending, n in sorted(Counter(passed_over).items()))
    return f"{count} {'file' if count == 1 else 'files'} passed over ({kinds}): {READ_FORMATS}"


def _files_below(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.join(parent, name) for name in files if not name.startswith("."))
