"""Pictures named on a command line: files, folders, patterns such as 'photos/*.jpg', or samples of the embedded data.

`shapes:val:0-7` means samples 0 to 7 of the embedded data's validation split, so that everything can be tried
without a file.
"""

import glob
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

from PIL import Image

from vitreous.data.image import SUFFIXES, load_image
from vitreous.data.image_files import picture_files, told
from vitreous.data.shapes_images import SHAPES_SEED
from vitreous.errors import InputError

SAMPLES = re.compile(r"shapes(?::([a-z]+))?:([a-z]+):(\d{1,9})(?:-(\d{1,9}))?")  # difficulty, split, first, last
ACCEPTED = "image files, folders of images, patterns such as 'photos/*.jpg', or shapes:val:0-7"


class Picture(NamedTuple):
    name: str  # as the user knows it: path or shapes:val:3
    label: str | None  # what the name says about the class: parent folder or the sample's category
    load: Callable[[], Image.Image]


def find_pictures(names: Sequence[str], *, size: tuple[int, int]) -> list[Picture]:
    """Every picture the names stand for, in the order given and sorted within a folder; none is opened yet.

    Args:
        names: See the head of this module.
        size: (H, W) at which embedded samples are drawn.
    """
    if not names:
        raise InputError(f"no images given; accepted: {ACCEPTED}")
    found = [picture for name in names for picture in _pictures_of(name, size)]
    return list({picture.name: picture for picture in found}.values())  # a picture named twice is shown once


def _pictures_of(name: str, size: tuple[int, int]) -> list[Picture]:
    if name == "shapes" or name.startswith("shapes:"):
        return _samples(name, size)
    path = Path(name)
    if path.is_dir():
        found, passed_over = picture_files(path)
        if not found:
            others = f" ({told(passed_over)})" if passed_over else ""
            raise InputError(f"folder {name!r} holds no image ({', '.join(SUFFIXES)}){others}; accepted: {ACCEPTED}")
        if passed_over:
            print(f"{name}: {told(passed_over)}")
        files = [path / file for file in found]
    elif path.exists():
        files = [path]
    else:
        files = [Path(match) for match in sorted(glob.glob(name, recursive=True)) if Path(match).is_file()]
        if not files:
            raise InputError(f"no image at {name!r}; accepted: {ACCEPTED}")
    return [Picture(file.as_posix(), file.resolve().parent.name, partial(load_image, file)) for file in files]


def _samples(name: str, size: tuple[int, int]) -> list[Picture]:
    from vitreous.data.shapes import CATEGORIES, Difficulty, Shapes  # only when embedded samples are asked for

    match = SAMPLES.fullmatch(name)
    if match is None:
        raise InputError(
            f"cannot read {name!r}; embedded samples are written shapes:SPLIT:FIRST-LAST, as in shapes:val:0-7, "
            "or with a difficulty, as in shapes:hard:val:0-7"
        )
    difficulty, split, first = cast(Difficulty, match[1] or "easy"), match[2], int(match[3])
    last = int(match[4] or first)
    if last < first:
        raise InputError(f"{name!r} is empty: {last} is smaller than {first}; write the smaller index first")
    scenes = Shapes(split, count=last + 1, size=size, seed=SHAPES_SEED, difficulty=difficulty)

    def picture(index: int) -> Picture:
        prefix = name[: match.start(3)]
        return Picture(
            f"{prefix}{index}", CATEGORIES[scenes[index].label], lambda: Image.fromarray(scenes[index].image)
        )

    return [picture(index) for index in range(first, last + 1)]
