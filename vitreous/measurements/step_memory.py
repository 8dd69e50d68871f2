"""Memory of one training step at any batch, and the largest batch that fits.

Counted on tensors without values, as `vitreous bench` counts: with the run's own loss, precision and recomputation, but
nothing is computed, so that a batch that would not fit can be asked about. Where the work depends on values, as in a
detector, which matches boxes, or on other processes, a step is computed instead, on few images.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from vitreous.errors import InputError
from vitreous.files.storage import amount_text
from vitreous.measurements.machine import free_on
from vitreous.measurements.memory import Allocations, counting, tensor_bytes, without_values
from vitreous.measurements.plan import MEMORY_MARGIN
from vitreous.runtime.distributed import World

# On a CPU the resident memory grows by more than the tensors of a pass: free blocks of other sizes lie between them,
# and libraries copy. Measured 1.14 to 1.20 (paca_b0, emsnet_xxtiny, xcit_nano_12_p16, partialformer_b0; batch 16, 128
# and 160 pixels), and 1.6 where a few large convolutions are most of it (resnet10t).
CPU_OVERHEAD = 1.14
BATCH_STEP, LARGEST_AUTO_BATCH = 8, 1024
TRIED_COUNTS = (2, 4)  # images of computed steps, from which those of more are extrapolated; batch norm needs two
PASSES_TRIED = 8


class Learner(Protocol):
    """What is asked of a training run that has not begun."""

    settings: Any
    state: Any  # model, average of its weights, optimiser
    task: Any
    world: World
    device: torch.device
    learner: Any
    train_loader: Any

    def loss(self, piece: Any, index: int) -> Tensor: ...
    def train_mode(self) -> None: ...


class StepMemory(NamedTuple):
    images: int  # at a time in one process
    held: int  # bytes for as long as it trains: weights, their average, a teacher, AdamW's two moments
    passing: int  # bytes of all tensors of a pass and of gradients, at the moment when they are most
    estimated: bool  # without computing

    @property
    def whole(self) -> int:
        return self.held + self.passing


class MemoryLine(NamedTuple):
    """Memory at two batches, and by a straight line at any other."""

    fewer: StepMemory
    more: StepMemory

    def whole(self, count: int) -> int:
        return max(self.more.held, int(self.more.whole + self.slope * (count - self.more.images)))

    @property
    def slope(self) -> float:
        """Bytes of an image."""
        if self.fewer.images == self.more.images:
            return self.more.passing / self.more.images
        return (self.more.whole - self.fewer.whole) / (self.more.images - self.fewer.images)

    def fitting(self, limit: int) -> int:
        """The most images that fit; 0 for none."""
        return max(0, math.floor(self.more.images + (limit - self.more.whole) / max(self.slope, 1)))


def held_bytes(training: Learner) -> int:
    """What stays on the device while a run trains, in one process."""
    model, average = training.state.model, training.state.ema
    moments = 2 * sum(p.nbytes for p in model.parameters() if p.requires_grad)
    teacher = getattr(getattr(training.task, "distillation", None), "teacher", None)
    others = [each.model for each in (average, teacher) if each is not None]
    return (tensor_bytes(model) + moments) // shares(training) + sum(tensor_bytes(other) for other in others)


def gradient_bytes(training: Learner) -> int:
    return sum(p.nbytes for p in training.state.model.parameters() if p.requires_grad) // shares(training)


def shares(training: Learner) -> int:
    return training.world.size if training.settings.shard else 1


def step_memory(training: Learner, piece: Any, count: int) -> StepMemory:
    """Memory of a step on `count` images like those of a piece of a batch."""
    estimated = training.world.size == 1
    if estimated:
        try:
            counted = counted_without_values(training, piece, count)
        except RuntimeError:  # how tensors without values say that they are asked for one
            estimated = False
    if not estimated:
        counted = counted_in_a_step(training, piece, count)
    # With several pieces or processes, all gradients are there before the last backward pass begins.
    stay = training.train_loader.sampler.pieces > 1 or training.world.size > 1
    passing = counted.peak + gradient_bytes(training) if stay else counted.whole
    overhead = CPU_OVERHEAD if training.device.type == "cpu" else 1.0
    return StepMemory(count, held_bytes(training), int(overhead * passing), estimated)


def counted_without_values(training: Learner, piece: Any, count: int) -> Allocations:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with without_values(mode, training.state.model), mode:
        fake = piece._replace(images=mode.from_tensor(piece.images))
        fake = fake._replace(targets=tree_map_only(Tensor, mode.from_tensor, piece.targets))
        return counted_pass(training, repeated(fake, count))


def counted_in_a_step(training: Learner, piece: Any, count: int) -> Allocations:
    with buffers_kept(training.state.model):
        return counted_pass(training, repeated(piece, count))


def counted_pass(training: Learner, piece: Any) -> Allocations:
    """Forward and backward, not compiled; the gradients are dropped."""
    whole, training.learner = training.learner, training.learner if training.settings.shard else training.state.model
    training.train_mode()
    try:
        with counting(training.state.model, piece.images) as counted:
            training.loss(piece, 0).backward()
    finally:
        training.learner = whole
    return counted


def repeated(piece: Any, count: int) -> Any:
    """A piece of as many images: the same ones again, or the first."""
    there = len(piece.indices)
    places = [place % there for place in range(count)]

    def chosen(value: Any) -> Any:
        if isinstance(value, list):
            return [value[place] for place in places]
        return value[torch.tensor(places)] if isinstance(value, Tensor) else value

    targets = {name: chosen(value) for name, value in piece.targets.items()}
    return piece._replace(images=chosen(piece.images), targets=targets, indices=tuple(piece.indices[p] for p in places))


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Statistics of batch norms are afterwards as before, so that a run does not depend on what was tried."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


# ---- what fits ---------------------------------------------------------------------------------------------------


def memory_allowed(training: Learner) -> int | None:
    """Bytes that one process may take on its device, with what it holds already; None if that is unknown."""
    free = free_on(training.device)
    if free is None:
        return None
    together = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if training.device.type == "cpu" else 1
    models = [training.state.model] + ([] if training.state.ema is None else [training.state.ema.model])
    return free // together + sum(tensor_bytes(model) for model in models)


def most_images(memory: Callable[[int], StepMemory], limit: int, most: int) -> StepMemory | None:
    """The largest batch, up to `most`, whose memory stays within the limit; None if not even one image's does.

    Memory grows faster with many images than with few, for which weights and gradients count more. So the line through
    two small batches promises too much, and a line between one that fits and one that does not too little: a few
    passes find where it ends.
    """
    line = MemoryLine(*(memory(min(count, most)) for count in TRIED_COUNTS))
    if not line.more.estimated:  # more images would have to be computed, and might not fit
        count = usual_count(min(most, line.fitting(limit)))
        return line.more._replace(images=count, passing=line.whole(count) - line.more.held) if count else None
    one = line.fewer._replace(images=1, passing=line.whole(1) - line.fewer.held)  # batch norms may not compute one
    fits = next((found for found in (line.more, line.fewer, one) if found.whole <= limit), None)
    if fits is None:
        return None
    for _ in range(PASSES_TRIED):
        count = usual_count(min(most, line.fitting(limit)))
        if count <= fits.images:
            break
        found = memory(count)
        if found.whole > limit:
            line = MemoryLine(fits, found)
            continue
        fits = found
        if line.more.whole <= limit:
            break
        line = MemoryLine(fits, line.more)
    return fits


def usual_count(count: int) -> int:
    """Down to a multiple of 8, unless there are fewer."""
    return count // BATCH_STEP * BATCH_STEP or count


class FittingBatch(NamedTuple):
    """The largest batch that fits, and the rule by which it was found."""

    images: int  # of all processes and pieces together
    memory: StepMemory
    allowed: int
    device: str

    def __str__(self) -> str:
        how = "estimated without computing" if self.memory.estimated else "by computing on few images"
        return (
            f"batch size: {self.images}, the largest that fits the {amount_text(self.allowed)} that are free on "
            f"{self.device} with {MEMORY_MARGIN - 1:.0%} to spare: {self.memory.images} images at a time take about "
            f"{amount_text(self.memory.whole)}, {how} (above {BATCH_STEP} a multiple of it; at most "
            f"{LARGEST_AUTO_BATCH}, and no more than there are)"
        )


def largest_batch(training: Learner, images: int) -> FittingBatch:
    """The largest batch of at most so many images that the devices of all processes can hold."""
    world, pieces, device = training.world, training.settings.accumulate, str(training.device)
    allowed = memory_allowed(training)
    if allowed is None:
        raise InputError(f"--batch-size auto given, but '{device}' does not tell how much memory it has; give a number")
    piece, most = next(iter(training.train_loader)), min(LARGEST_AUTO_BATCH, images) // (world.size * pieces)
    limit = int(min(world.gather(allowed)) / MEMORY_MARGIN)
    fits = most_images(lambda count: step_memory(training, piece, count), limit, max(1, most))
    counts = world.gather(0 if fits is None else fits.images)
    if fits is None or not min(counts):
        raise InputError(
            f"not even one image at a time fits into the {amount_text(allowed)} that are free on {device}; give a "
            "smaller --size or model, --grad-checkpointing blocks, or more processes with --shard"
        )
    return FittingBatch(min(counts) * world.size * pieces, fits, allowed, device)
