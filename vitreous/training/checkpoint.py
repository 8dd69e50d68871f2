"""Checkpoints in generations: each whole or absent, checked when read, the previous one kept in reserve.

    checkpoints/
      step-00000120/   tensors.safetensors, record.json, manifest.json
      step-00000180/
      LATEST           "step-00000180"

No pickle anywhere: tensors go to safetensors, numbers to JSON.
"""

import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitreous.manifest import DamagedError, read_json, verify_folder
from vitreous.training.storage import publish_folder, replace_file, write_json

TENSORS, RECORD, LATEST = "tensors.safetensors", "record.json", "LATEST"
GENERATION = re.compile(r"step-\d{8,}")


class Checkpoint(NamedTuple):
    step: int
    tensors: dict[str, Tensor]
    record: dict[str, Any]
    notes: tuple[str, ...]  # what was wrong with newer generations; empty if all was well


def save_checkpoint(
    folder: Path, step: int, tensors: dict[str, Tensor], record: dict[str, Any], *, keep: int = 2
) -> None:
    """Write a generation, point `LATEST` at it, then drop all but the `keep` newest."""
    assert keep >= 2, "the previous generation is the reserve if the newest turns out damaged"

    def write(aside: Path) -> None:
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, aside / TENSORS)
        write_json(aside / RECORD, {"step": step, **record})

    generation = folder / f"step-{step:08d}"
    publish_folder(generation, write)
    replace_file(folder / LATEST, generation.name + "\n")
    for old in _generations(folder)[keep:]:
        shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest generation that passes its checks, or None if there never was one.

    Raises DamagedError if generations exist and none of them can be used.
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


def _read(generation: Path) -> tuple[int, dict[str, Tensor], dict[str, Any]]:
    verify_folder(generation, (TENSORS, RECORD))
    record = read_json(generation / RECORD)
    try:
        return int(record.pop("step")), load_file(generation / TENSORS), record
    except (safetensors.SafetensorError, KeyError, AttributeError) as reason:
        raise DamagedError(f"{generation} was not written by vitreous ({reason})") from reason


def _generations(folder: Path) -> list[Path]:
    """Newest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if GENERATION.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.partition("-")[2]), reverse=True)


def _stale_pointer(folder: Path, generations: list[Path]) -> list[str]:
    """A note if `LATEST` names a generation that is not there: its rename was lost, or someone removed it."""
    try:
        named = (folder / LATEST).read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, UnicodeDecodeError):
        named = "nothing readable"
    if named in {path.name for path in generations}:
        return []
    return [f"{folder / LATEST} names '{named}', which is not there; looking for the newest whole checkpoint"]
