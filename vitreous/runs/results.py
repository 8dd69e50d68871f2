"""Result folders: what a verb wrote about pictures, and a marker file that lists its files.

Everything is written to a hidden staging folder inside the result folder, and moved when it is complete. If anything
fails before that, the earlier result is still there.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from PIL import Image
from torch import Tensor

from vitreous.data.image import ImageError
from vitreous.data.pictures import Picture
from vitreous.errors import InputError, printable
from vitreous.files.limits import MAX_RESULTS_BYTES
from vitreous.files.reading import read_json
from vitreous.files.storage import remove_path, write_json
from vitreous.files.writing import STANDARD_OUTPUT

_logger = logging.getLogger(__name__)

UNFINISHED = ".unfinished"  # a killed verb leaves it behind; the next one removes it
PARTS = ".parts"  # finished portions of the work, which a killed verb leaves behind and the next one continues


@contextmanager
def result_folder(out: Path, marker: str) -> Iterator[Path]:
    """A staging folder for a result; when the block succeeds, the result replaces the earlier one in `out`.

    `out` must be empty, or hold an earlier result of the same verb or unfinished parts of one (`result_parts`). The
    block must write `marker`, a JSON file whose "files" lists all other files.
    """
    _refuse_foreign_folder(out, marker)
    absent = [path for path in (out, *out.parents) if not path.exists()]
    staging = out / UNFINISHED
    try:
        remove_path(staging)
        staging.mkdir(parents=True)
    except OSError as reason:
        _remove_empty(absent)
        raise InputError(f"cannot write to folder {out} ({reason.strerror}); choose another --out") from reason
    try:
        yield staging
        _publish(staging, out, marker)
    finally:
        remove_path(staging)
        _remove_empty(absent)


def _refuse_foreign_folder(folder: Path, marker: str) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file; give a new folder")
    if not folder.is_dir() or (folder / marker).is_file():
        return
    if any(path.name not in (UNFINISHED, PARTS) for path in folder.iterdir()):
        raise InputError(f"folder {folder} is not empty and holds no earlier {marker}; give a new folder with --out")


def _publish(staging: Path, out: Path, marker: str) -> None:
    """Move a result to its place. At every moment the marker in `out` lists all of our files in it."""
    earlier = _listed(out / marker)
    if (out / marker).is_file():
        _logger.info(printable(f"replacing the earlier result in {out}"))
    content = json.loads((staging / marker).read_text(encoding="utf-8"))
    new = content["files"]
    write_json(staging / UNFINISHED, content | {"files": sorted({*earlier, *new})})
    os.replace(staging / UNFINISHED, out / marker)
    for name in new:
        os.replace(staging / name, out / name)
    for name in set(earlier) - {*new, marker}:
        (out / name).unlink(missing_ok=True)
    os.replace(staging / marker, out / marker)


def _listed(marker: Path) -> list[str]:
    """The files that an earlier result lists; paths that lead elsewhere are not ours."""
    try:
        names = read_json(marker, MAX_RESULTS_BYTES)["files"]
        return [name for name in names if Path(name).name == name and (marker.parent / name).is_file()]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove empty folders, innermost first, up to the first that is not empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def require_writable(option: str, file: Path) -> None:
    """Make sure, before the work starts, that its result can be written."""
    if file == STANDARD_OUTPUT:
        return
    if file.is_dir():
        raise InputError(f"{option} {file} is a folder; give the name of a file")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise InputError(f"cannot write {option} {file} ({reason.strerror}); choose another place") from reason
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise InputError(f"cannot write {option} {file} (no permission); choose another place")


def require_positive(**values: int | None) -> None:
    """None is a default that is chosen later."""
    for name, value in values.items():
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} {value} cannot be used; give a whole number from 1 up")


def require_numbers(model: str, probabilities: Tensor) -> None:
    if not probabilities.isfinite().all():
        raise InputError(
            f"model {model} predicts NaN; its weights are damaged or its training diverged: use other weights, or "
            "train again with a lower --lr"
        )


def file_name(index: int, name: str) -> str:
    """A unique file name for a picture, valid on every file system."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(name).stem)[:60]
    return f"{index:03d}_{stem}.png"


def load_readable(pictures: Iterable[Picture]) -> Iterator[tuple[Picture, Image.Image]]:
    """Each readable picture with its pixels; others are logged and skipped."""
    for picture in pictures:
        try:
            yield picture, picture.load()
        except ImageError as error:
            report_unreadable(error)


def report_unreadable(error: ImageError) -> None:
    _logger.warning(printable(f"skipped: {error}"))


def report_skipped(skipped: int, total: int) -> None:
    if total and skipped == total:
        raise InputError(f"none of the {total} images could be read; the reasons are above")
    if skipped:
        _logger.warning("%d of %d images could not be read and were skipped", skipped, total)
