"""Checkpoints in generations: each complete or absent, verified when read, with the previous one kept in reserve.

A reserve is verified again before older generations are removed. Damaged generations, and newer ones that a run could
not use, do not count as a reserve and are removed first.

    checkpoints/
      step-00000120/   tensors.safetensors, record.json, manifest.json
      step-00000180/   also tensors-1.safetensors, … where the model is split among processes, each writing its rows
      LATEST           "step-00000180"

No pickle anywhere: tensors go to safetensors, numbers to JSON. The number of processes that wrote a checkpoint does not
matter: concatenating a tensor's rows in the order of the files gives the tensor.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitreous.errors import InputError
from vitreous.files.storage import (
    DamagedError,
    discard_folder,
    publish_folder,
    read_manifest,
    read_stored_json,
    replace_file,
    verify_folder,
    write_json,
)
from vitreous.runtime.distributed import SINGLE_PROCESS, World

TENSORS, RECORD, LATEST = "tensors.safetensors", "record.json", "LATEST"
GENERATION = re.compile(r"step-\d{8,}")
PART = re.compile(r"tensors-(\d+)\.safetensors")


class StoredTensors(Mapping[str, Tensor]):
    """The tensors of a generation by name, read on demand; `rows` reads a part of one."""

    def __init__(self, generation: Path) -> None:
        others = {int(found[1]): path for path in generation.iterdir() if (found := PART.fullmatch(path.name))}
        paths = [generation / TENSORS, *(others[rank] for rank in sorted(others))]
        self._lengths: dict[str, dict[Path, int | None]] = {}  # rows in each file; None for a scalar
        for path in paths:
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118  (it is no dictionary)
                    shape = file.get_slice(name).get_shape()
                    self._lengths.setdefault(name, {})[path] = shape[0] if shape else None

    def __getitem__(self, name: str) -> Tensor:
        return self.rows(name, slice(None))

    def rows(self, name: str, wanted: slice) -> Tensor:
        """Some rows of a tensor; other parts of the files are not read."""
        parts, before = [], 0
        for path, length in self._lengths[name].items():
            with safe_open(path, "pt") as file:
                if length is None:
                    return file.get_tensor(name)
                start, stop, _ = wanted.indices(self.length(name))
                parts.append(file.get_slice(name)[max(0, start - before) : max(0, stop - before)])
                before += length
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def length(self, name: str) -> int:
        """Number of rows of the tensor; 0 for a scalar."""
        return sum(length or 0 for length in self._lengths[name].values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._lengths)

    def __len__(self) -> int:
        return len(self._lengths)


class Checkpoint(NamedTuple):
    step: int
    tensors: StoredTensors
    record: dict[str, Any]
    notes: tuple[str, ...]  # what was wrong with newer generations


def save_checkpoint(
    folder: Path,
    step: int,
    tensors: dict[str, Tensor],
    record: dict[str, Any],
    *,
    keep: int = 2,
    world: World = SINGLE_PROCESS,
) -> None:
    """Write a generation, point `LATEST` at it, then remove all but the `keep` newest that are complete.

    With several processes, the first one gives everything that is not sharded, and each gives its rows of the rest.
    """
    assert keep >= 2, "the previous generation is the reserve if the newest turns out damaged"

    def write(staging: Path) -> list[str]:
        name = TENSORS if world.main else f"tensors-{world.rank}.safetensors"
        names = [name] if tensors or world.main else []
        if names:
            save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, staging / name)
        if world.main:
            write_json(staging / RECORD, {"step": step, **record})
            names.append(RECORD)
        return names

    def point() -> None:
        replace_file(folder / LATEST, generation.name + "\n")
        for surplus in _surplus(folder, generation, keep - 1):
            discard_folder(surplus)

    generation = _place(folder, step)
    publish_folder(generation, write, world)
    world.on_main(point)


def save_record(folder: Path, step: int, record: dict[str, Any]) -> bool:
    """Replace the record of this step's generation, whose tensors stay the same; returns whether that was possible.

    The tensors are linked, not copied, and keep their checksums, so this is as fast as writing a small file.
    """
    generation = _place(folder, step)

    def write(staging: Path) -> list[str]:
        for name in known:
            os.link(generation / name, staging / name)
        write_json(staging / RECORD, {"step": step, **record})
        return [*known, RECORD]

    try:
        files = read_manifest(generation, (TENSORS, RECORD))
        known = {name: entry for name, entry in files.items() if name == TENSORS or PART.fullmatch(name)}
        publish_folder(generation, write, known=known)
    except InputError:  # no generation of this step, or a file system without links
        return False
    return True


def _surplus(folder: Path, written: Path, reserves: int) -> list[Path]:
    """Generations to remove, useless ones first; `reserves` complete ones stay beside the one just written."""
    useless, old, kept = [], [], 0
    for generation in _generations(folder):
        if generation == written:
            continue
        if _number(generation) > _number(written):  # unusable: the run fell back to an older one
            useless.append(generation)
        elif kept == reserves:
            old.append(generation)
        elif _is_complete(generation):
            kept += 1
        else:
            useless.append(generation)
    return useless + old


def _is_complete(generation: Path) -> bool:
    try:
        verify_folder(generation, (TENSORS, RECORD))
    except DamagedError:
        return False
    return True


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest generation that passes its checks, or None if there is none.

    Raises DamagedError if there are generations but none of them is usable.
    """
    generations = _generations(folder)
    notes = _stale_pointer(folder, generations)
    for generation in generations:
        last = generation == generations[-1]
        try:
            step, tensors, record = _read(generation)
        except DamagedError as reason:
            next_step = "" if last else "; falling back to the one before"
            notes.append(f"checkpoint {generation.name} cannot be used: {reason}{next_step}")
        else:
            return Checkpoint(step, tensors, record, tuple(notes))
    if notes:
        raise DamagedError(
            f"no checkpoint in {folder} can be used; remove the run folder to start again\n" + "\n".join(notes)
        )
    return None


def _read(generation: Path) -> tuple[int, StoredTensors, dict[str, Any]]:
    verify_folder(generation, (TENSORS, RECORD))
    record = read_stored_json(generation / RECORD)
    try:
        return int(record.pop("step")), StoredTensors(generation), record
    except (SafetensorError, KeyError, AttributeError, TypeError, ValueError, OSError) as reason:
        raise DamagedError(f"{generation} was not written by vitreous ({reason})") from reason


def _generations(folder: Path) -> list[Path]:
    """Newest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if GENERATION.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=_number, reverse=True)


def _place(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def _number(generation: Path) -> int:
    return int(generation.name.partition("-")[2])


def _stale_pointer(folder: Path, generations: list[Path]) -> list[str]:
    """A note if `LATEST` names a generation that does not exist: its rename was lost, or someone removed it."""
    try:
        named = (folder / LATEST).read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, UnicodeDecodeError):
        named = "nothing readable"
    if named in {path.name for path in generations}:
        return []
    return [f"{folder / LATEST} names '{named}', which is not there; looking for the newest complete checkpoint"]
