"""Parts of a single result: what is finished while a verb works through many images, so that a kill costs little.

    out/.parts/
      shards.json                  which model, images and settings
      atlas-00000.safetensors      what was gathered from the first portion of the images
      atlas-00001.safetensors      ...

The images are cut into portions of whole batches, by nothing but their number and the batch size, and the parts are put
together in their order: the result has the same bits, however many processes worked on it and whatever was interrupted.
Files are those of `result_shards`, whole or absent, with a checksum; one that is damaged is not there. The processes of
a run divide the portions that are missing, and the parts are removed when the result is complete.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from vitreous.data.image_set import ImageSet
from vitreous.errors import InputError, printable
from vitreous.files.limits import MAX_RESULTS_BYTES
from vitreous.files.reading import parse_json, reading, require_regular
from vitreous.files.storage import DamagedError, json_text, remove_path
from vitreous.files.writing import refuse_link
from vitreous.runs.result_shards import (
    NOTE,
    ResultShards,
    Share,
    begin_folder,
    hash_tensors,
    json_values,
    model_fingerprint,
    read_note,
    require_same_note,
)
from vitreous.runs.results import PARTS
from vitreous.runs.trained_model import TrainedModel
from vitreous.runtime.console import track
from vitreous.runtime.distributed import World
from vitreous.version import __version__

PART_ENDING = ".safetensors"
MOST_PARTS = 64  # of an atlas of 1,000 classes and 100 clusters each has some 5 MB


class Part(NamedTuple):
    """What a file holds: numbers, and what JSON can say."""

    numbers: dict[str, Tensor]
    told: dict[str, Any]


_T = TypeVar("_T")


@dataclass(frozen=True)
class Parts(Generic[_T]):
    """The parts of one result, seen from one of the processes that work on it."""

    shards: ResultShards
    images: Sequence[int]  # numbers within the data
    world: World
    read: Callable[[Part, Sequence[int]], _T]  # of a part of these images
    result: str  # which one, as a checksum of its note

    def fill(self, work: Callable[[range, Iterator[int]], Part], *, label: str) -> None:
        """Do what is missing: `work` is given the places and the numbers of a portion's images."""
        missing = self.world.on_main(self._missing)
        try:
            self.world.agree(lambda: self._fill(missing[self.world.rank :: self.world.size], work, label))
        except BaseException:
            if self.world.main and not _stored(self.shards.folder):
                _remove(self.shards.folder)
            raise

    def _fill(self, portions: Sequence[int], work: Callable[[range, Iterator[int]], Part], label: str) -> None:
        numbers = chain.from_iterable(self._images_of(portion) for portion in portions)
        shown = track(numbers, total=self.shards.pictures_of(portions), label=label)
        for portion in portions:
            places = self.shards.numbers(portion)
            content = _packed(work(places, islice(shown, len(places))), self._belongs(portion))
            with self.shards.writing(portion) as file:
                file.write(content)
        for _ in shown:  # shows that all is done
            pass

    def _missing(self) -> list[int]:
        """Portions without a part that can be read, after a word about the others."""
        missing = self.shards.missing(range(self.shards.count))
        for portion in sorted({*range(self.shards.count)} - {*missing}):
            try:
                self._with(portion, lambda _: None, "its images are done again")
            except InputError as error:
                print(printable(f"{error}"))
                missing.append(portion)
        there = self.shards.pictures - self.shards.pictures_of(missing)
        if there:
            print(f"{there:,} of {self.shards.pictures:,} images were there before")
        return sorted(missing)

    def put_together(self, add: Callable[[_T], None], check: Callable[[], None]) -> bool:
        """Whether this is the first process, which gives every part to `add`, in order and one at a time.

        `check` may say that they make no result; then they are of no use.
        """

        def act() -> None:
            for portion in range(self.shards.count):
                self._with(portion, add, f"remove {self.shards.folder} and run the same command again")
            try:
                check()
            except InputError:
                _remove(self.shards.folder)
                raise

        self.world.on_main(act)
        return self.world.main

    def _images_of(self, portion: int) -> Sequence[int]:
        places = self.shards.numbers(portion)
        return self.images[places.start : places.stop]

    def _with(self, portion: int, use: Callable[[_T], None], remedy: str) -> None:
        path = self.shards.path(portion)
        with reading(str(path), remedy=remedy):
            use(self.read(_unpacked(path, self._belongs(portion)), self._images_of(portion)))

    def _belongs(self, portion: int) -> str:
        """To which part of which result a file belongs: another command may have begun in the same folder since."""
        return f"{portion} {self.result}"


def parts_note(
    kind: str,
    trained: TrainedModel,
    images: ImageSet,
    chosen: Sequence[int],
    batch_size: int,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """What makes parts those of another result if it differs; `chosen` are the numbers of the images to work on."""
    own = {**settings, "batch_size": batch_size, "vitreous": __version__}
    return {
        "kind": kind,
        "model": trained.name,
        "fingerprint": model_fingerprint(trained),
        "settings": json_values(own),
        "data": {
            "pictures": len(chosen),
            "of": len(images),
            "fingerprint": images.fingerprint,
            "with_object": sum(images.has_object_mask(number) for number in chosen),
        },
        "portion_size": portion_size(len(chosen), batch_size),
    }


def portion_size(pictures: int, batch_size: int) -> int:
    batches = -(-pictures // batch_size)
    return batch_size * max(1, -(-batches // MOST_PARTS))


def open_parts(
    out: Path,
    note: Callable[[], dict[str, Any]],
    images: Sequence[int],
    read: Callable[[Part, Sequence[int]], _T],
    world: World,
) -> Parts[_T]:
    """Begin the parts of a result in `out`, or continue those that are there if they are of the same."""
    folder = out / PARTS

    def begin() -> tuple[str, int, str]:
        wanted = note()
        refuse_link(folder)
        if (folder / NOTE).is_file() and not _stored(folder):
            _remove(folder)  # nothing is lost
        try:
            stored = begin_folder(folder, wanted)
        except DamagedError:
            print(printable(f"{folder / NOTE} is damaged: all images are done again"))
            _remove(folder)
            stored = begin_folder(folder, wanted)
        _require_same(folder, stored, wanted)
        return wanted["kind"], wanted["portion_size"], hashlib.sha256(json_text(wanted).encode()).hexdigest()

    kind, size, result = world.on_main(begin)
    world.agree(lambda: _require_shared(folder))
    shards = ResultShards(folder, kind, PART_ENDING, len(images), size, Share(world.rank, world.size))
    return Parts(shards, images, world, read, result)


def remove_parts(out: Path) -> None:
    """Of a result that is complete."""
    _remove(out / PARTS)


def was_interrupted(out: Path, note: dict[str, Any]) -> bool:
    """Whether there are parts of this very result; those of another one are refused."""
    folder = out / PARTS
    if not _stored(folder):
        return False
    try:
        stored = read_note(folder)
    except DamagedError:
        return False
    _require_same(folder, stored, note)
    return True


def _stored(folder: Path) -> list[Path]:
    return list(folder.glob(f"*{PART_ENDING}"))


def _remove(folder: Path) -> None:
    """The note goes last: parts without one would be nobody's, and refused."""
    for path in _stored(folder):
        remove_path(path)
    remove_path(folder)


def _require_same(folder: Path, stored: Mapping[str, Any], note: Mapping[str, Any]) -> None:
    remedy = "remove that folder to begin anew, give another --out, or repeat the command that was interrupted"
    require_same_note(stored, note, f"the unfinished parts in {folder}", remedy)


def _require_shared(folder: Path) -> None:
    if not (folder / NOTE).is_file():
        raise InputError(
            f"{folder} is not there, where the first process began it; give an --out that all processes see"
        )


# ---- one part as a file ------------------------------------------------------------------------------------------


def _packed(part: Part, belongs: str) -> bytes:
    told = json.dumps(part.told)
    numbers = {name: value.detach().cpu().contiguous() for name, value in part.numbers.items()}
    return save(numbers, metadata={"told": told, "of": belongs, "sha256": _digest(numbers, told + belongs)})


def _unpacked(path: Path, belongs: str) -> Part:
    require_regular(path, MAX_RESULTS_BYTES)
    with safe_open(path, "pt") as file:
        numbers, header = {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    if _digest(numbers, header.get("told", "") + header.get("of", "")) != header.get("sha256"):
        raise ValueError("its content is not what was written")
    if header.get("of") != belongs:
        raise ValueError("it is part of another result")
    return Part(numbers, parse_json(header["told"]))


def _digest(numbers: Mapping[str, Tensor], told: str) -> str:
    """safetensors does not notice a flipped bit."""
    total = hashlib.sha256(told.encode(errors="surrogateescape"))
    hash_tensors(total, numbers)
    return total.hexdigest()
