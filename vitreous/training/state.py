"""All that changes while a run trains, so that it can be stored and brought back whole."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.training.checkpoint import load_checkpoint, save_checkpoint
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
    train_loss: float = math.nan  # as in the last training line


@dataclass
class TrainState:
    """Model, optimiser, loss scaler, averaged weights and position.

    There is no random state: whatever is random in a run is keyed by seed and position.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    ema: WeightAverage | None
    position: Position

    @property
    def shown_model(self) -> nn.Module:
        """The weights that are validated and kept: averaged ones if there are any."""
        return self.model if self.ema is None else self.ema.model

    def save(self, folder: Path) -> None:
        tensors = _under("model/", self.model.state_dict())
        tensors |= _under("optimizer/", optimizer_tensors(self.model, self.optimizer))
        if self.ema is not None:
            tensors |= _under("ema/", self.ema.model.state_dict())
        record = {"position": _json(asdict(self.position)), "scaler": self.scaler.state_dict()}
        save_checkpoint(folder, self.position.step, tensors, record)

    def load(self, folder: Path) -> tuple[str, ...] | None:
        """Bring back the newest whole checkpoint; returns what was wrong with newer ones, None if there is none."""
        checkpoint = load_checkpoint(folder)
        if checkpoint is None:
            return None
        self.model.load_state_dict(_below("model/", checkpoint.tensors))
        restore_optimizer(self.model, self.optimizer, _below("optimizer/", checkpoint.tensors))
        if self.ema is not None:
            self.ema.model.load_state_dict(_below("ema/", checkpoint.tensors))
        self.scaler.load_state_dict(checkpoint.record["scaler"])
        self.position = Position(**_numbers(checkpoint.record["position"]))
        return checkpoint.notes


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + key: value for key, value in tensors.items()}


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _json(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity and no NaN: these become strings that float() reads."""
    return {key: value if math.isfinite(value) else str(value) for key, value in values.items()}


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    return {key: float(value) if isinstance(value, str) else value for key, value in values.items()}
