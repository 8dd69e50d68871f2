"""Everything that changes while a run trains, so that it can be saved and restored."""

import copy
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from vitreous.files.storage import DamagedError
from vitreous.runs.checkpoint import RECORD, Checkpoint, load_checkpoint, save_checkpoint, save_record
from vitreous.runtime.distributed import SINGLE_PROCESS, World
from vitreous.runtime.parallel import is_sharded, local_part, local_rows
from vitreous.training.optim import optimizer_tensors, restore_optimizer


class WeightAverage:
    """Exponential moving average of parameters and floating-point buffers as a second model; counters are copied.

    The decay rises with the step as (1 + step) / (10 + step) until it reaches the given one, so that short runs do
    not keep their random initialisation. It is a function of the step, so nothing needs to be stored.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.source = decay, model
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After optimiser step `step`, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averages, sources, copied = self._pairs
        torch._foreach_lerp_(averages, sources, 1 - decay)
        for average, source in copied:
            average.copy_(source)

    @cached_property
    def _pairs(self) -> tuple[list[Tensor], list[Tensor], list[tuple[Tensor, Tensor]]]:
        """(averages, sources, pairs to copy); collected once: both models keep their tensors while they train.

        Of parameters this process's part, of buffers also those outside `state_dict`.
        """
        both = [[*model.named_parameters(), *model.named_buffers()] for model in (self.model, self.source)]
        average, source = ({name: local_part(tensor).detach() for name, tensor in one} for one in both)
        averaged = [name for name, tensor in source.items() if tensor.is_floating_point()]
        copied = [(average[name], source[name]) for name in source if name not in set(averaged)]
        return [average[name] for name in averaged], [source[name] for name in averaged], copied


@dataclass
class Position:
    """How far a run has come."""

    step: int = 0  # optimiser steps taken
    epochs_done: int = 0  # epochs trained, validated and logged
    best: float = -math.inf  # main metric of the best epoch so far
    best_epoch: int = 0  # epochs done when it was the best
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
        moments = {key.removeprefix("optimizer/"): t for key, t in tensors.items() if key.startswith("optimizer/")}
        restore_optimizer(self.model, self.optimizer, moments)
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


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()  # over all processes, if it is sharded


def _json(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity and no NaN: these become strings that float() reads."""
    finite = {key: value for key, value in values.items() if isinstance(value, dict) or math.isfinite(value)}
    return {key: finite.get(key, str(value)) for key, value in values.items()}


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    return {key: float(value) if isinstance(value, str) else value for key, value in values.items()}
