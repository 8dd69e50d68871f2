"""Everything that changes while a run trains, so that it can be saved and restored."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from vitreous.files.storage import DamagedError
from vitreous.runs.checkpoint import RECORD, Checkpoint, load_checkpoint, save_checkpoint, save_record
from vitreous.runtime.distributed import SINGLE_PROCESS, World
from vitreous.runtime.parallel import is_sharded, local_part, local_rows
from vitreous.training.ema import WeightAverage
from vitreous.training.optim import optimizer_tensors, restore_optimizer


@dataclass
class Position:
    """How far a run has come."""

    step: int = 0  # optimiser steps taken
    epochs_done: int = 0  # epochs trained, validated and logged
    best: float = -math.inf  # main metric of the best epoch so far
    metric_lines: int = 0  # lines of metrics.jsonl written so far
    loss_sum: float = 0.0  # over the images since the last training line
    loss_images: int = 0
    term_sums: dict[str, float] = field(default_factory=dict)  # over the same images, of terms that have columns
    train_loss: float = math.nan  # mean over the training lines of the epoch
    bad_images: int = 0  # lines of bad_images.jsonl written so far


@dataclass
class TrainState:
    """Model, optimiser, loss scaler, averaged weights and position.

    There is no random state: all random numbers of a run are functions of seed and position.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    ema: WeightAverage | None
    position: Position

    @property
    def evaluated_model(self) -> nn.Module:
        """The weights that are validated and kept: the averaged ones if there are any."""
        return self.model if self.ema is None else self.ema.model

    def save(self, folder: Path, world: World = SINGLE_PROCESS) -> None:
        tensors = self._weights() | _under("optimizer/", optimizer_tensors(self.model, self.optimizer))
        own = {
            name: local_part(tensor) for name, tensor in tensors.items() if world.main or isinstance(tensor, DTensor)
        }
        own = {name: part for name, part in own.items() if world.main or len(part)}
        save_checkpoint(folder, self.position.step, own, self._record(), world=world)

    def save_position(self, folder: Path, world: World = SINGLE_PROCESS) -> None:
        """Like `save`, when only the position has changed since a `save` at the same step."""
        if not world.on_main(lambda: save_record(folder, self.position.step, self._record())):
            self.save(folder, world)

    def _record(self) -> dict[str, Any]:
        return {"position": _json(asdict(self.position)), "scaler": self.scaler.state_dict()}

    def stored_bytes(self) -> int:
        """Size of a checkpoint, even before the first step, when the optimiser has no state yet."""
        moments = 2 * sum(_bytes(parameter) for parameter in self.model.parameters() if parameter.requires_grad)
        return sum(map(_bytes, self._weights().values())) + moments

    @torch.no_grad()
    def load(self, folder: Path, world: World = SINGLE_PROCESS) -> tuple[str, ...] | None:
        """Restore the newest complete checkpoint; returns what was wrong with newer ones, or None if there is none."""
        checkpoint = world.on_main(lambda: load_checkpoint(folder))
        if checkpoint is None:
            return None
        if is_sharded(self.model):
            tensors = self._own_part_of(checkpoint)
        else:
            tensors = world.broadcast(dict(checkpoint.tensors) if world.main else None)
        weights = self._weights()
        if weights.keys() != {name for name in tensors if not name.startswith("optimizer/")}:
            raise DamagedError(
                f"the checkpoint in {folder} is of another model than these settings build with the versions here; "
                "install the versions named in run.json, or choose another --out"
            )
        for name, tensor in weights.items():
            local_part(tensor).copy_(tensors[name])
        restore_optimizer(self.model, self.optimizer, _below("optimizer/", tensors))
        try:
            self.scaler.load_state_dict(checkpoint.record["scaler"])
            self.position = Position(**_numbers(checkpoint.record["position"]))
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as reason:
            place = folder / f"step-{checkpoint.step:08d}" / RECORD
            raise DamagedError(
                f"{place} is damaged: its 'scaler' or 'position' is not what vitreous writes ({reason!r}); "
                "remove that checkpoint to continue from the one before"
            ) from reason
        return checkpoint.notes

    def _weights(self) -> dict[str, Tensor]:
        averaged = {} if self.ema is None else _under("ema/", self.ema.model.state_dict())
        return _under("model/", self.model.state_dict()) | averaged

    def _own_part_of(self, checkpoint: Checkpoint) -> dict[str, Tensor]:
        """The rows of each stored tensor that this process holds; no full tensor is ever loaded."""
        stored, holders = checkpoint.tensors, self._weights()
        parameters = _under("optimizer/", dict(self.model.named_parameters()))
        for name in stored:
            holder = parameters.get(name.rpartition("/")[0])
            if holder is not None and stored.length(name):  # optimiser state is sharded like its parameter
                holders[name] = holder
        split = {name: local_rows(tensor) for name, tensor in holders.items() if isinstance(tensor, DTensor)}
        return {name: stored.rows(name, split[name]) if name in split else stored[name] for name in stored}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + key: value for key, value in tensors.items()}


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()  # over all processes, if it is sharded


def _json(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity and no NaN: these become strings that float() reads."""
    finite = {key: value for key, value in values.items() if isinstance(value, dict) or math.isfinite(value)}
    return {key: finite.get(key, str(value)) for key, value in values.items()}


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    return {key: float(value) if isinstance(value, str) else value for key, value in values.items()}
