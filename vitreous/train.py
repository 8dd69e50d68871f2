"""`vitreous train`: the loop, top to bottom.

A run is a function of its settings: sample order, augmentation, dropout and stochastic depth are keyed by seed,
epoch, step and index, never by what happened before. So a checkpoint needs no random state, and a run that was
killed at any moment and started again ends with the same bits as one that was not (same machine and versions).
"""

import math
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.data.loader import Batch, BatchSampler, Loader, mix, seed_everything
from vitreous.data.source import ImageSet, describe, open_data
from vitreous.errors import InputError
from vitreous.evaluate import Scores, evaluation_loader, score
from vitreous.registry import is_stored, resolve_name
from vitreous.tasks.base import Task
from vitreous.tasks.classify import Classify
from vitreous.training.build import build_model, model_arguments, preprocess_for
from vitreous.training.console import Clock, EpochTable
from vitreous.training.device import autocast, choose_device
from vitreous.training.ema import WeightAverage
from vitreous.training.model_folder import save_model
from vitreous.training.optim import build_optimizer, set_lr
from vitreous.training.progress import track
from vitreous.training.run import RunFolder
from vitreous.training.schedule import cosine
from vitreous.training.settings import FREE, TrainSettings, takes
from vitreous.training.state import Position, TrainState
from vitreous.training.stop import StopRequested, StopSignals

DROPOUT, MIXING = 1, 2  # first number of a key, so that no two uses of the seed coincide
say = partial(print, flush=True)  # a log file shows it at once


class Stepped(NamedTuple):
    loss: float  # mean over the images
    images: int


@takes(TrainSettings)
def train(settings: TrainSettings) -> Path:
    """Train a model on the embedded shapes or on your own folder of images; returns the run folder.

    vitreous train paca_b0 shapes --size 64 --epochs 10
    vitreous train paca_tiny flowers --out runs/flowers --epochs 50 --augment rand-m9-mstd0.5-inc1 --ema 0.999
    vitreous train resnet18 flowers --pretrained --lr 2e-4 --mixup 0.2 --amp bf16

    The same command again continues a run that was interrupted, to the same bits. The run folder holds `best/` and
    `final/`, which every other verb accepts, `metrics.jsonl`, and `checkpoints/`.
    """
    resolve_name(settings.model)  # a mistyped name should not wait for the data to be read
    with RunFolder(settings.folder) as run, StopSignals() as stop:
        images = open_splits(settings)
        fingerprints = {split: found.fingerprint for split, found in images.items()}
        say(describe(settings.data, **images))
        if is_stored(settings.model) and not settings.pretrained:
            say(f"model: {settings.model}, its architecture only; add --pretrained to start from its weights")
        known = run.holds(settings.arguments(), fingerprints, free=FREE, resume=settings.resume)
        if known and (run.path / "final").exists():
            say(f"the run in {run.path} is finished; nothing to do")
            return run.path
        training = Training(settings, run, stop, images)
        if known:
            training.resume()
        else:
            run.begin(settings.arguments(), fingerprints)
        try:
            training.fit()
        except StopRequested as request:
            training.checkpoint()
            step = training.state.position.step
            say(f"{request}: checkpoint written at step {step}; the same command continues from there")
            raise SystemExit(request.exit_code) from None
        finally:
            training.close()
    say(f"finished: {run.path}   next: vitreous evaluate {run.path} {settings.data}")
    return run.path


class Training:
    """Everything that a run consists of, and what it does in turn."""

    def __init__(
        self,
        settings: TrainSettings,
        run: RunFolder,
        stop: StopSignals,
        images: dict[str, ImageSet],
    ) -> None:
        self.settings, self.run, self.stop, self.table = settings, run, stop, EpochTable()
        self.device = choose_device(settings.device)
        self.classes = images["train"].classes
        self.task: Task = Classify(self.classes, label_smoothing=settings.label_smoothing, mixup=settings.mixing())
        self.model_args = model_arguments(settings)
        model = build_model(settings, self.model_args, len(self.classes))
        self.preprocess = preprocess_for(model, settings)
        self.layout = torch.channels_last if settings.channels_last else torch.contiguous_format
        self.state = self._initial_state(self.task.model(model))
        self.train_loader, self.val_loader = self._loaders(images["train"], images["val"])
        self.steps_per_epoch = self.train_loader.sampler.batches
        self.total_steps = settings.epochs * self.steps_per_epoch
        self.saved_at = time.monotonic()

    def _initial_state(self, model: nn.Module) -> TrainState:
        settings = self.settings
        model = model.to(self.device, memory_format=self.layout)  # type: ignore[call-overload]
        return TrainState(
            model=model,
            optimizer=build_optimizer(model, lr=settings.lr, weight_decay=settings.weight_decay),
            scaler=torch.amp.GradScaler(self.device.type, enabled=settings.amp == "fp16"),
            ema=WeightAverage(model, settings.ema) if settings.ema else None,
            position=Position(),
        )

    def _loaders(self, train_images: ImageSet, val_images: ImageSet) -> tuple[Loader, Loader]:
        """The one place that decides which process sees which images."""
        settings = self.settings
        sampler = BatchSampler(
            len(train_images),
            settings.batch_size,
            seed=settings.seed,
            shuffle=True,
            drop_last=True,
            pieces=settings.accumulate,
        )
        views = self.task.dataset(train_images, settings.augmentation(self.preprocess))
        train_loader = Loader(views, sampler, self.task.collate, workers=settings.workers)
        piece = -(-sampler.batch_size // sampler.pieces)  # what fits into memory when training fits now
        val_loader = evaluation_loader(
            self.task, val_images, self.preprocess, batch_size=piece, workers=settings.workers
        )
        return train_loader, val_loader

    def fit(self) -> None:
        """From the current position to the end."""
        for epoch in range(self.state.position.epochs_done, self.settings.epochs):
            start = time.perf_counter()
            self.train_epoch(epoch)
            scores = self.validate(epoch)
            self.finish_epoch(epoch, scores, time.perf_counter() - start)
        self.save_model("final")

    def train_epoch(self, epoch: int) -> None:
        position = self.state.position
        start = position.step - epoch * self.steps_per_epoch  # not 0 when an epoch is continued
        self.stop.check()
        self.train_loader.set_position(epoch, start)
        self.state.model.train()
        clock = Clock()
        for pieces in track(
            grouped(self.train_loader, self.train_loader.sampler.pieces),
            total=self.steps_per_epoch - start,
            label=f"epoch {epoch + 1}/{self.settings.epochs}",
            unit="batches",
        ):
            stepped = self.step(pieces, epoch)
            clock.images += stepped.images
            position.loss_sum += stepped.loss * stepped.images
            position.loss_images += stepped.images
            if position.step % self.settings.log_every == 0 or position.step % self.steps_per_epoch == 0:
                self.log_training(epoch, clock.rate())
            self.stop.check()
            if self.checkpoint_due():
                self.checkpoint()

    def step(self, pieces: list[Batch], epoch: int) -> Stepped:
        """One optimiser step on a batch in pieces; a loss or gradient that is not finite never gets to the weights."""
        state, number = self.state, self.state.position.step
        images = sum(len(piece.indices) for piece in pieces)
        state.optimizer.zero_grad(set_to_none=True)
        mean = 0.0
        for index, piece in enumerate(pieces):
            share = len(piece.indices) / images
            loss = self.loss(piece, index)
            value = loss.item()
            if not math.isfinite(value):
                raise not_finite(f"the loss is {value}", number, epoch, piece.indices)
            state.scaler.scale(loss * share).backward()
            mean += value * share
        norm = self.clip_gradients()
        if self.settings.amp != "fp16" and not math.isfinite(norm):  # a scaler passes over such steps by itself
            raise not_finite(f"the norm of the gradient is {norm}", number, epoch, pieces[0].indices)
        set_lr(state.optimizer, self.lr_factor(number))
        state.scaler.step(state.optimizer)
        state.scaler.update()
        if state.ema is not None:
            state.ema.update(number)
        self.task.after_step(state.model, number / self.total_steps)
        state.position.step += 1
        return Stepped(mean, images)

    def loss(self, piece: Batch, index: int) -> Tensor:
        seed, number = self.settings.seed, self.state.position.step
        seed_everything(seed, DROPOUT, number, index)  # stochastic depth and dropout
        images = piece.images.to(self.device, memory_format=self.layout, non_blocking=True)
        targets = {key: value.to(self.device, non_blocking=True) for key, value in piece.targets.items()}
        rng = np.random.default_rng(mix(seed, MIXING, number, index))
        images, targets = self.task.augment_batch(images, targets, rng)
        with autocast(self.device, self.settings.amp):
            losses = self.task.losses(self.state.model, images, targets)
        return torch.stack(list(losses.values())).sum()

    def clip_gradients(self) -> float:
        """Returns the norm of the gradient before clipping."""
        self.state.scaler.unscale_(self.state.optimizer)
        parameters = self.state.model.parameters()
        if self.settings.clip_grad:
            return float(nn.utils.clip_grad_norm_(parameters, self.settings.clip_grad))
        return float(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))

    def lr_factor(self, step: int) -> float:
        settings = self.settings
        warmup = min(self.total_steps, round(settings.warmup_epochs * self.steps_per_epoch))
        return cosine(step, total=self.total_steps, warmup=warmup, floor=settings.min_lr / settings.lr)

    def validate(self, epoch: int) -> Scores:
        return score(
            self.task,
            self.state.shown_model,
            self.val_loader,
            device=self.device,
            amp=self.settings.amp,
            label=f"validate {epoch + 1}/{self.settings.epochs}",
            between_batches=self.stop.check,
        )

    def finish_epoch(self, epoch: int, scores: Scores, seconds: float) -> None:
        """Log, keep the weights if they are the best so far, then checkpoint: a kill in between repeats all."""
        position, value = self.state.position, scores.values[self.task.main_metric]
        rate = round(scores.images_per_second, 1)
        self.run.log(step=position.step, epoch=epoch + 1, split="val", **scores.values, images_per_second=rate)
        improved = value > position.best
        if improved:
            position.best = value
            self.save_model("best")
        position.epochs_done = epoch + 1
        self.checkpoint()
        shown = {"epoch": f"{epoch + 1}/{self.settings.epochs}", "train loss": f"{position.train_loss:.4f}"}
        shown |= {f"val {name}": f"{figure:.4f}" for name, figure in scores.values.items()}
        self.table.row(shown | {"seconds": f"{seconds:.1f}"}, mark=improved)

    def save_model(self, name: str) -> None:
        save_model(
            self.run.path / name,
            self.state.shown_model,
            name=self.settings.model,
            model_args=self.model_args,
            task=self.settings.task,
            classes=self.classes,
            preprocess=self.preprocess,
        )

    def checkpoint(self) -> None:
        self.state.position.metric_lines = self.run.metric_lines
        self.state.save(self.run.path / "checkpoints")
        self.saved_at = time.monotonic()

    def checkpoint_due(self) -> bool:
        every, step = self.settings.checkpoint_steps, self.state.position.step
        if step % self.steps_per_epoch == 0:
            return False  # validation comes first; finish_epoch saves
        late = time.monotonic() - self.saved_at > 60 * self.settings.checkpoint_minutes
        return late or (every > 0 and step % every == 0)

    def resume(self) -> None:
        notes = self.state.load(self.run.path / "checkpoints")
        for note in notes or ():
            say(note)
        self.run.cut_metrics(self.state.position.metric_lines)
        say(f"continuing {self.run.path} at step {self.state.position.step} of {self.total_steps}")

    def log_training(self, epoch: int, rate: float) -> None:
        position = self.state.position
        position.train_loss = position.loss_sum / position.loss_images
        position.loss_sum, position.loss_images = 0.0, 0
        self.run.log(
            step=position.step,
            epoch=epoch + 1,
            split="train",
            loss=position.train_loss,
            lr=self.settings.lr * self.lr_factor(position.step - 1),
            images_per_second=round(rate, 1),
        )

    def close(self) -> None:
        self.train_loader.close()
        self.val_loader.close()


def open_splits(settings: TrainSettings) -> dict[str, ImageSet]:
    size = (settings.size, settings.size)
    counts = {"train": settings.train_count, "val": settings.val_count}
    return {split: open_data(settings.data, split, size=size, count=count) for split, count in counts.items()}


def grouped(batches: Iterable[Batch], count: int) -> Iterator[list[Batch]]:
    iterator = iter(batches)
    while group := list(islice(iterator, count)):
        yield group


def not_finite(what: str, step: int, epoch: int, samples: tuple[int, ...]) -> InputError:
    shown = ", ".join(map(str, samples[:64])) + (", …" if len(samples) > 64 else "")
    return InputError(
        f"{what} at step {step} (epoch {epoch + 1}), on training samples {shown}; the weights are unchanged by it. "
        "Lower --lr, raise --warmup-epochs, set --clip-grad, or use --amp off or bf16"
    )
