"""Before a long run: memory, number and time of its steps, what it takes on disk, and all that for more processes.

Memory is estimated before anything is computed (`step_memory.py`); then a few steps are taken, as the run would take
them, and measured. Nothing of it is kept.
"""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

from vitreous.errors import InputError
from vitreous.files.storage import amount_text, existing_parent
from vitreous.measurements.memory import resident_growth
from vitreous.measurements.step_memory import (
    TRIED_COUNTS,
    Learner,
    MemoryLine,
    gradient_bytes,
    held_bytes,
    memory_allowed,
    step_memory,
    usual_count,
)
from vitreous.runs.trained_model import in_batches
from vitreous.runtime.console import format_duration, track
from vitreous.runtime.device import faster_in_bf16
from vitreous.training.stop import StopRequested

TIMED_SECONDS, FEWEST_TIMED, MOST_TIMED = 10.0, 3, 20  # of the steps that are timed
PROCESSES = (1, 2, 4, 8)
VALIDATED_BATCHES = 2


class Rehearsed(Learner, Protocol):
    """A training run that is ready to begin."""

    steps_per_epoch: int
    total_steps: int
    images: Any  # by split
    run: Any

    def step(self, pieces: list[Any], epoch: int) -> Any: ...
    def try_evaluation(self, pictures: int) -> Any: ...
    def disk_bytes(self) -> tuple[int, int]: ...


class StepTimes(NamedTuple):
    seconds: float  # median of the timed steps, waiting included
    waiting: float  # of it, until the images of a step are there
    steps: int
    memory: int | None  # bytes that one process held at most; None where that cannot be measured


@dataclass(frozen=True)
class TrainingPlan:
    """What a run would take; `str` of it is what `vitreous train --dry-run` prints."""

    model: str
    parameters: int
    batch: int  # images of a step
    pieces: int
    processes: int
    device: str
    compiled: bool
    halves_help: bool  # whether it computes in single precision, and the device is faster in mixed
    image_size: tuple[int, int]  # of the batch that was looked at
    images: tuple[int, int]  # to learn from, to validate on
    epochs: int
    steps_per_epoch: int
    done_steps: int
    memory: MemoryLine
    allowed: int | None
    gradients: int
    times: StepTimes
    validation_seconds: float
    disk: tuple[int, int]  # while it trains, afterwards
    disk_free: int
    folder: Path

    @property
    def total_steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def epoch_seconds(self) -> float:
        return self.steps_per_epoch * self.times.seconds + self.validation_seconds

    @property
    def run_seconds(self) -> float:
        return self.epoch_seconds * (self.total_steps - self.done_steps) / self.steps_per_epoch

    def __str__(self) -> str:
        rows = {
            "model": f"{self.model}, {self.parameters:,} parameters",
            "data": f"{self.images[0]:,} images to learn from, {self.images[1]:,} to validate on",
            "steps": self._steps(),
            "memory": self._memory(),
            "": self._memory_by(),
            "time": self._time(),
            "disk": f"{amount_text(self.disk[0])} while it trains, {amount_text(self.disk[1])} afterwards; "
            f"{amount_text(self.disk_free)} are free",
        }
        head = f"plan of {self.folder} (nothing of it is kept):"
        lines = [head, *(f"  {name:<8}{text}" for name, text in rows.items())]
        if self.halves_help:
            lines.append("  this device multiplies bfloat16: --amp bf16 may take half of the time")
        return "\n".join([*lines, *self._processes()])

    def _steps(self) -> str:
        pieces = f" in {self.pieces} pieces" if self.pieces > 1 else ""
        done = f", {self.done_steps:,} steps are done" if self.done_steps else ""
        return (
            f"{self.steps_per_epoch:,} in an epoch, {self.total_steps:,} in all ({self.epochs} epochs{done}); "
            f"{self.batch} images each{pieces}"
        )

    def _memory(self) -> str:
        found = self.memory.more
        each = f" in each of {self.processes} processes" if self.processes > 1 else ""
        free = "" if self.allowed is None else f" of {amount_text(self.allowed)} that are free"
        kept = f"{amount_text(found.held)} of it for weights and optimiser"
        return f"about {amount_text(found.whole)}{free} on {self.device}{each}, {kept}"

    def _memory_by(self) -> str:
        height, width = self.image_size
        how = (
            "estimated without computing"
            if self.memory.more.estimated
            else "not estimated, as it depends on what images show or on other processes, but counted on few images"
        )
        measured = "" if self.times.memory is None else f"; measured in a step: {amount_text(self.times.memory)}"
        compiled = "; compiled steps may take less" if self.compiled else ""
        return f"({how}, of {height}x{width} pixels{compiled}{measured})"

    def _time(self) -> str:
        return (
            f"{self.times.seconds:.3g} s a step, {self.times.waiting:.2g} s of it waiting for images "
            f"({self.times.steps} measured); an epoch {format_duration(self.epoch_seconds)}, validation included "
            f"({format_duration(self.validation_seconds)}); the run {format_duration(self.run_seconds)}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """The same run by other numbers of processes, each with a device like this one."""
        at_a_time = self.memory.more.images * self.processes
        found = []
        for number in sorted({*PROCESSES, self.processes}):
            images = -(-at_a_time // number)
            alone = self.processes == 1 and number == 1
            # gradients of several processes are there from the first layer on, where one process makes them by and by
            memory = self.memory.more.whole if alone or number == self.processes else self.memory.whole(images)
            found.append(
                {
                    "processes": number,
                    "images": images,
                    "memory_bytes": memory + (self.gradients if self.processes == 1 and number > 1 else 0),
                    "epoch_seconds": self.epoch_seconds * self.processes / number,
                    "exchanged_bytes": int(2 * self.gradients * (number - 1) / number),
                }
            )
        return [row for row in found if row["processes"] <= at_a_time]

    def _processes(self) -> list[str]:
        lines = ["  on more processes, each with a processor or GPU like this one (time: at best, without exchange):"]
        lines.append(f"  {'processes':>12}{'images each':>14}{'memory each':>14}{'epoch':>10}{'sent in a step':>17}")
        for row in self.rows():
            sent = amount_text(row["exchanged_bytes"]) if row["exchanged_bytes"] else "-"
            lines.append(
                f"  {row['processes']:>12}{row['images']:>14}{amount_text(row['memory_bytes']):>14}"
                f"{format_duration(row['epoch_seconds']):>10}{sent:>17}"
            )
        return lines


def plan_training(training: Rehearsed, images: int) -> TrainingPlan:
    """Estimate, then take a few steps; a batch that does not fit is refused before the first."""
    sampler, settings, world = training.train_loader.sampler, training.settings, training.world
    piece = next(iter(training.train_loader))
    at_a_time = -(-sampler.batch_size // (sampler.pieces * world.size))
    allowed, memory = memory_allowed(training), memory_line(training, piece, at_a_time)
    if allowed is not None and memory.more.whole > allowed:
        raise too_large(training, memory, allowed)
    done = training.state.position.step
    times = measured_steps(training)
    scores = training.try_evaluation(min(len(training.images["val"]), VALIDATED_BATCHES * at_a_time))
    return TrainingPlan(
        model=settings.model,
        parameters=sum(p.numel() for p in training.state.model.parameters()),
        batch=sampler.batch_size,
        pieces=sampler.pieces,
        processes=world.size,
        device=str(training.device),
        compiled=settings.compile,
        halves_help=settings.amp == "off" and faster_in_bf16(training.device),
        image_size=(piece.images.shape[-2], piece.images.shape[-1]),
        images=(images, len(training.images["val"])),
        epochs=settings.all_epochs,
        steps_per_epoch=training.steps_per_epoch,
        done_steps=done,
        memory=memory,
        allowed=allowed,
        gradients=gradient_bytes(training),
        times=times,
        validation_seconds=len(training.images["val"]) / (scores.images_per_second * world.size),
        disk=training.disk_bytes(),
        disk_free=shutil.disk_usage(existing_parent(training.run.path)).free,
        folder=training.run.path,
    )


def memory_line(training: Learner, piece: Any, images: int) -> MemoryLine:
    """At this batch, and at a small one."""
    small = step_memory(training, piece, min(TRIED_COUNTS[0], images))
    if small.images == images:
        return MemoryLine(small, small)
    if small.estimated:
        return MemoryLine(small, step_memory(training, piece, images))
    # Whether a batch fits must be known before it is computed.
    line = MemoryLine(small, step_memory(training, piece, min(TRIED_COUNTS[1], images)))
    return MemoryLine(small, line.more._replace(images=images, passing=line.whole(images) - line.more.held))


def too_large(training: Learner, memory: MemoryLine, allowed: int) -> InputError:
    whole = training.world.size * training.train_loader.sampler.pieces
    fits = usual_count(memory.fitting(allowed)) * whole
    less = f"--batch-size {fits} would do, or " if fits else ""
    return InputError(
        f"a step on {memory.more.images} images at a time needs about {amount_text(memory.more.whole)}, and "
        f"{amount_text(allowed)} are free on {training.device}; {less}"
        f"{'' if less else 'give '}a larger --accumulate, --grad-checkpointing blocks, or a smaller --size"
    )


def steps_of(training: Rehearsed) -> Iterator[tuple[list[Any], int]]:
    """Batches in pieces and their epoch, as often as they are asked for."""
    for epoch in count():
        training.train_loader.set_position(epoch)
        for pieces in in_batches(training.train_loader, training.train_loader.sampler.pieces):
            yield pieces, epoch


def measured_steps(training: Rehearsed) -> StepTimes:
    """Two steps to warm up, the second of which shows the memory; then a few that are timed."""
    batches, world = steps_of(training), training.world
    training.train_mode()
    take_step(training, batches)
    training.state.optimizer.zero_grad(set_to_none=True)
    start = time.perf_counter()
    grown = resident_growth(lambda: take_step(training, batches), training.device)
    usual = time.perf_counter() - start
    steps = world.on_main(lambda: min(MOST_TIMED, max(FEWEST_TIMED, int(TIMED_SECONDS / usual))))
    timed = [
        take_step(training, batches)
        for _ in track(range(steps), total=steps, label="measure a few steps", unit="steps")
    ]
    # Processes keep the memory of gradients between steps, where one frees it.
    memory = (
        None if grown is None else grown + held_bytes(training) + (gradient_bytes(training) if world.size > 1 else 0)
    )
    whole, waiting = (median(part) for part in zip(*timed, strict=True))
    return StepTimes(whole, waiting, steps, memory)


def take_step(training: Rehearsed, batches: Iterator[tuple[list[Any], int]]) -> tuple[float, float]:
    """Seconds of one step, and of waiting for its images."""
    start = time.perf_counter()
    pieces, epoch = next(batches)
    loaded = time.perf_counter()
    result = training.step(pieces, epoch)  # waits for the device
    if result.signal:
        raise StopRequested(result.signal)
    return time.perf_counter() - start, loaded - start
