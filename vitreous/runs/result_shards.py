"""Results of millions of pictures: numbered shards that are whole or absent, and a note of what they are about.

    found/
      shards.json                  which model, data and settings; how many shards of how many pictures
      predictions-00000.jsonl      pictures 0 to 2047
      predictions-00001.jsonl      ...

Any number of processes on any number of machines fill one folder on a shared file system: a process writes every n-th
shard and needs to know nothing but its number and n (RANK and WORLD_SIZE, as torchrun sets them). A shard is written
under another name, synced and renamed, so the shards that are there are finished work, which the same command, started
again with as many processes as you like, does not do again. What another model wrote is refused.
"""

import hashlib
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from vitreous.data.image_set import ImageSet
from vitreous.errors import InputError
from vitreous.files.reading import excerpt
from vitreous.files.storage import DamagedError, json_text, read_stored_json, write_errors_explained
from vitreous.files.writing import atomic_file, write_text
from vitreous.runs.trained_model import TrainedModel

NOTE = "shards.json"
SHARD_SIZE = 2048  # pictures, unless there are too few of them for the processes
SHARDS_PER_PROCESS = 8  # at least, where there are enough pictures, so that all end at about the same time
SMALLEST_SHARD, LARGEST_SHARD = 32, 65_536  # a batch; what memory and the header of a file easily hold
SAYS = {  # keys of the note -> what differs
    "kind": "what is in it",
    "fingerprint": "the model's weights or preprocessing",
    "data": "the pictures",
    "settings": "the settings",
    "shard_size": "--shard-size",
}


class Share(NamedTuple):
    """Which part of the work a process does: every `processes`-th shard, from its own number on."""

    number: int = 0
    processes: int = 1
    on_machine: int | None = None  # its number on this machine, which chooses a GPU

    @property
    def main(self) -> bool:
        return self.number == 0


def own_share() -> Share:
    """As torchrun, or whoever starts the processes, says it in the environment."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    try:
        number, processes, local = (int(os.environ[name]) if name in os.environ else None for name in names)
    except ValueError:
        given = ", ".join(f"{name}={os.environ.get(name)}" for name in names)
        raise InputError(f"{given} in the environment; give whole numbers, or unset them for one process") from None
    if processes is None or processes == 1:
        return Share()
    if number is None or not 0 <= number < processes:
        raise InputError(
            f"WORLD_SIZE is {processes} and RANK {number}; each process needs a RANK from 0 to {processes - 1}: start "
            f"them with torchrun --nproc-per-node {processes} -m vitreous …, or unset WORLD_SIZE for one"
        )
    return Share(number, processes, local)


@dataclass(frozen=True)
class ResultShards:
    """The shards of one folder, seen from one of the processes that fill it."""

    folder: Path
    stem: str
    ending: str  # .jsonl, .safetensors
    pictures: int
    size: int
    share: Share

    @property
    def count(self) -> int:
        return -(-self.pictures // self.size)

    def path(self, number: int) -> Path:
        return self.folder / f"{self.stem}-{number:05d}{self.ending}"

    def numbers(self, shard: int) -> range:
        """Of the pictures in a shard."""
        return range(shard * self.size, min((shard + 1) * self.size, self.pictures))

    def own(self) -> range:
        return range(self.share.number, self.count, self.share.processes)

    def missing(self, shards: Sequence[int]) -> list[int]:
        return [shard for shard in shards if not self.path(shard).is_file()]

    def pictures_of(self, shards: Sequence[int]) -> int:
        return sum(len(self.numbers(shard)) for shard in shards)

    @contextmanager
    def writing(self, shard: int) -> Iterator[IO[bytes]]:
        """A file that becomes the shard when the block ends without an error."""
        path = self.path(shard)
        with write_errors_explained(path), atomic_file(path, unique=True) as file:
            yield file
        for left in self.folder.glob(f".{path.name}.*.tmp"):  # by a process that was killed
            with suppress(OSError):
                left.unlink()


def open_shards(
    folder: Path, stem: str, ending: str, images: ImageSet, share: Share, size: int | None, about: Mapping[str, Any]
) -> ResultShards:
    """Begin, or continue, a folder of shards; `about` is what makes it another result if it differs."""
    if size is not None and size > LARGEST_SHARD:
        raise InputError(f"--shard-size {size} cannot be used; a shard holds at most {LARGEST_SHARD:,} pictures")
    data = {"pictures": len(images), "fingerprint": images.fingerprint}
    chosen = usual_shard_size(len(images), share.processes) if size is None else size
    note = {"kind": stem, **about, "data": data, "shard_size": chosen, "ending": ending}
    stored = begin_folder(folder, note)
    if size is None:
        note["shard_size"] = stored.get("shard_size")
    remedy = "give a new folder with --out, or the model, data and options that they were written with"
    require_same_note(stored, note, f"the shards in {folder}", remedy)
    return ResultShards(folder, stem, ending, len(images), note["shard_size"], share)


def begin_folder(folder: Path, note: dict[str, Any]) -> dict[str, Any]:
    """Make sure that a folder has a note; what comes back is that of the process that came first."""
    with write_errors_explained(folder):
        _refuse_other_content(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return _first_note(folder / NOTE, note)


def json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """As they come back from a file, where they are compared: lists for tuples, texts for paths."""
    return json.loads(json.dumps(values, default=str))


def usual_shard_size(pictures: int, processes: int) -> int:
    """So large that shards are few, and so small that every process has several."""
    fair = -(-pictures // (processes * SHARDS_PER_PROCESS))
    return max(SMALLEST_SHARD, min(SHARD_SIZE, -(-fair // SMALLEST_SHARD) * SMALLEST_SHARD))


def read_note(folder: Path) -> dict[str, Any]:
    note = read_stored_json(folder / NOTE)
    if not isinstance(note, dict):
        raise DamagedError(f"{folder / NOTE} is damaged: it holds no object; write the shards again to a new folder")
    return note


def _refuse_other_content(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file; give a new folder")
    if folder.is_dir() and not (folder / NOTE).is_file() and any(path.name[0] != "." for path in folder.iterdir()):
        raise InputError(f"folder {folder} is not empty and holds no earlier {NOTE}; give a new folder with --out")


def _first_note(path: Path, note: dict[str, Any]) -> dict[str, Any]:
    """The note in the folder: that of the process that came first."""
    if not path.exists():
        own = path.with_name(f".{NOTE}.{socket.gethostname()}-{os.getpid()}.tmp")
        try:
            write_text(own, json_text(note))
            _publish_once(own, path)
        finally:
            own.unlink(missing_ok=True)
    return read_note(path.parent)


def _publish_once(staged: Path, path: Path) -> None:
    try:
        os.link(staged, path)  # unlike a rename, it fails if another process was quicker
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        os.replace(staged, path)


def require_same_note(stored: Mapping[str, Any], note: Mapping[str, Any], files: str, remedy: str) -> None:
    """Refuse to mix `files`, which were written for something else, with what is to be written."""
    differing = [key for key in SAYS if key in note and stored.get(key) != note[key]]
    if differing:
        by = "by another model" if "fingerprint" in differing else "for something else"
        what = " and ".join(SAYS[key] for key in differing)
        named = _differing_settings(stored.get("settings"), note["settings"])
        which = f" ({', '.join(named)})" if named else ""
        raise InputError(f"{files} were written {by}, {excerpt(stored.get('model'))}: {what} differ{which}; {remedy}")


def _differing_settings(stored: Any, settings: Mapping[str, Any]) -> list[str]:
    known = stored if isinstance(stored, dict) else {}
    return [name for name, value in settings.items() if known.get(name) != value]


def model_fingerprint(trained: TrainedModel) -> str:
    """Equal for two models that give the same answers: their weights, task, classes and preprocessing are the same."""
    total = hashlib.sha256()
    known = (trained.task, trained.classes, sorted(trained.task_args.items()), trained.preprocess.to_dict())
    exported = getattr(trained.model, "digest", "")  # has no weights of its own
    total.update(repr((type(trained.model).__name__, exported, known)).encode(errors="surrogateescape"))
    closed = [(name, one.closed) for name, one in trained.model.named_modules() if getattr(one, "closed", ())]
    total.update(repr(closed).encode() if closed else b"")  # clusters that `mend` took away
    hash_tensors(total, trained.model.state_dict())
    return total.hexdigest()


def hash_tensors(total: Any, tensors: Mapping[str, Tensor]) -> None:
    """Let names, shapes, types and content of tensors count in a checksum."""
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
