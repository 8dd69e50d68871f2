"""Before the work: how much memory inference takes at an image size, and which batch fits into what is allowed.

    plan = plan_memory(vitreous.load_model("runs/demo"), size=(4000, 6000), max_memory="3GB")
    print(plan)

Counted on tensors without values, as `vitreous bench` counts. On the CPU the maps of our models are computed in tiles
(`layers/tiles.py`), so that what counts are the maps between blocks, not the wider ones within.
"""

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitreous.errors import InputError
from vitreous.layers.tiles import TILE_BYTES
from vitreous.measurements.benchmark import GIGABYTE
from vitreous.measurements.contender import Contender, Setting
from vitreous.measurements.machine import free_on
from vitreous.measurements.memory import PassMemory, pass_memory
from vitreous.models.base import Backbone
from vitreous.runs.trained_model import TrainedModel, is_whole
from vitreous.runtime.threads import concurrent_pieces
from vitreous.tasks.base import load_task

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
AMOUNT = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]+)", re.IGNORECASE)
PICTURE_BYTES = 3 + 3 + 12  # of one pixel: the picture, its bytes for the model, and as normalised numbers
# What the process holds beside the counted tensors: measured at most 8 % (paca_tiny, 4096 x 4096: counted 1.93 GB, the
# resident memory grew by 2.08 GB), and what libraries keep for every thread.
MEMORY_MARGIN, TILES_HELD = 1.15, 8
SIDE_STEP = 32  # suggested sizes are multiples of it


class Needed(NamedTuple):
    pictures: int  # bytes
    network: int  # bytes at the moment when its maps take most

    @property
    def whole(self) -> int:
        return self.pictures + self.network


@dataclass(frozen=True)
class MemoryPlan:
    """What inference takes above the loaded model."""

    size: tuple[int, int]  # height, width
    batch: int
    needed: Needed
    allowed: int | None
    tiled: bool

    def __str__(self) -> str:
        height, width = self.size
        limit = "" if self.allowed is None else f" of {gigabytes(self.allowed)} allowed"
        how = f"; maps in tiles, {concurrent_pieces()} at a time" if self.tiled else ""
        return (
            f"{height}x{width} pixels, {self.batch} at a time: {gigabytes(self.needed.pictures)} for pictures and "
            f"{gigabytes(self.needed.network)} in the network, {gigabytes(self.needed.whole)}{limit}{how}"
        )


def gigabytes(count: int) -> str:
    return f"{math.ceil(count / GIGABYTE * 100) / 100:.2f} GB"


def read_amount(given: str | int) -> int:
    """Bytes of what people write: 3GB, 500 MB, 2.5GiB, or a number of bytes."""
    form = AMOUNT.fullmatch(str(given).strip())
    unit = None if form is None else UNITS.get(form[2].upper())
    if isinstance(given, int) and given > 0:
        return given
    if form is None or unit is None or float(form[1]) <= 0:
        raise InputError(f"--max-memory {given} cannot be read; give an amount with its unit, such as 3GB or 800MB")
    return int(float(form[1]) * unit)


def plan_memory(
    model: TrainedModel | nn.Module,
    *,
    size: tuple[int, int] | None = None,
    batch_size: int = 1,
    max_memory: str | int | None = None,
) -> MemoryPlan:
    """What inference takes at this size; the largest batch, up to the one given, that fits into what is allowed.

    `model` is what `vitreous.load_model` gives, or a module that takes images: a classifier, or one that gives feature
    maps. Where not even one image fits, an InputError says what would.
    """
    if isinstance(model, TrainedModel):
        if not is_whole(model):
            raise InputError(
                f"--max-memory plans models that see whole pictures; '{model.name}' is for the task '{model.task}', "
                "whose images differ in size. Give a smaller --size instead"
            )
        size, module = size or model.preprocess.size, model.model
    else:
        module = model
    if size is None:
        raise InputError("plan_memory needs a size (height, width) for a model that does not bring its own")
    allowed = None if max_memory is None else read_amount(max_memory)
    one = needed_for(module, size, 1)
    limit = least_known(allowed, free_on(next(module.parameters()).device))
    limit = one.whole * batch_size if limit is None else limit
    if one.whole > limit:
        raise too_little(module, one, size, limit, limit == allowed)
    batch = min(batch_size, limit // one.whole)
    needed = Needed(one.pictures * batch, one.network * batch)  # maps of a batch are as large as those of its images
    tiled = isinstance(trunk_of(module), Backbone) and next(module.parameters()).device.type == "cpu"
    return MemoryPlan(size, batch, needed, allowed, tiled)


def trunk_of(model: nn.Module) -> nn.Module | None:
    return next((part for part in model.modules() if isinstance(part, Backbone)), None)


def least_known(*counts: int | None) -> int | None:
    return min((count for count in counts if count is not None), default=None)


def gradients_fit(model: nn.Module, size: tuple[int, int], allowed: int) -> bool:
    """Whether one image can also be passed backwards, for which the maps of all layers are kept."""
    device = next(model.parameters()).device

    def run(copied: nn.Module, images: Tensor) -> list[Tensor]:
        return [copied(images.requires_grad_())]

    try:
        with torch.enable_grad():
            memory = pass_memory(model, lambda: torch.randn(1, 3, *size, device=device), run)
    except RuntimeError:  # it depends on values, or has no gradients at all
        return False
    limit = least_known(allowed, free_on(device))
    return limit is None or with_pictures(memory, size, 1).whole <= limit


def needed_for(model: nn.Module, size: tuple[int, int], batch: int) -> Needed:
    device, training = next(model.parameters()).device, model.training
    try:
        memory = Contender(
            "the model", model, load_task("classify")(()), Setting("infer", size, batch), device
        ).memory()
    finally:
        model.train(training)
    if memory is None:
        raise InputError(
            "the memory of this model depends on what it sees and cannot be planned; leave out --max-memory"
        )
    return with_pictures(memory, size, batch)


def with_pictures(memory: PassMemory, size: tuple[int, int], batch: int) -> Needed:
    tiles = TILES_HELD * TILE_BYTES * concurrent_pieces()
    return Needed(PICTURE_BYTES * batch * math.prod(size), int(MEMORY_MARGIN * memory.activations) + tiles)


def fitting_size(model: nn.Module, one: Needed, size: tuple[int, int], limit: int) -> tuple[int, int]:
    """The largest of these proportions that fits, about; a part of the memory does not shrink with the image."""
    smaller = math.sqrt(limit / one.whole)
    while True:
        height, width = (max(SIDE_STEP, int(side * smaller) // SIDE_STEP * SIDE_STEP) for side in size)
        if height == width == SIDE_STEP or needed_for(model, (height, width), 1).whole <= limit:
            return height, width
        smaller *= 0.9


def too_little(model: nn.Module, one: Needed, size: tuple[int, int], limit: int, asked: bool) -> InputError:
    height, width = size
    fits = fitting_size(model, one, size, limit)
    what = f"--max-memory allows {gigabytes(limit)}" if asked else f"{gigabytes(limit)} are free"
    more = f"--max-memory {math.ceil(one.whole / 10**8) / 10:.1f}GB or " if asked else ""
    return InputError(
        f"one image of {height}x{width} pixels needs about {gigabytes(one.whole)}, and {what}; "
        f"{more}--size {fits[0]}x{fits[1]} would do"
    )
