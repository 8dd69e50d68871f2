"""Method: the one interface of everything that turns a decision into a heat map, so that all can be compared.

    method = GradCam()
    if (reason := method.missing(model)) is None:
        heat = method(model, images, target)      # (B, H, W) on the method's own grid, over the picture

Higher means more important. Negative values count against the target, for methods that distinguish the two; all others
are zero or more.
`images` are normalised network inputs (B, 3, height, width). `target` is a `Target`, class numbers, or None for the
predicted class. Methods are frozen dataclasses: their fields are their settings, and equal settings give equal maps.
A subclass gives `name`, `summary` and `needs` as plain class attributes, or as properties that look at its settings.

A new method is one file in this folder, or in `clusters`, found by being there (`catalogue`): the class, and below it
`METHODS = (MyMethod(),)`; a control goes into `CONTROLS`, what is used by name only into `BY_NAME`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.frame import of_picture
from vitreous.attribution.spatial import anatomy, find_place, is_differentiable, lacks_map
from vitreous.attribution.target import Target, as_target
from vitreous.errors import InputError
from vitreous.models.base import Backbone

MOST_PIXELS_AT_ONCE = ContextVar("MOST_PIXELS_AT_ONCE", default=64 * 224 * 224)  # of all images that run together


@dataclass(frozen=True)
class Needs:
    """What a method asks of a model, and what it costs."""

    passes: int  # forward passes per image, about; a backward pass counts as two
    gradient: bool = False  # the model must be differentiable
    target: bool = True  # False: the same map whatever is explained
    spatial: bool = False  # it must have features or attention on a grid
    clusters: bool = False  # it must have one of our backbones with clusters
    readout: bool = False  # whose classifier reads clusters

    @property
    def inside(self) -> bool:
        """Whether the map is on a grid of the network, which covers all that the network sees."""
        return self.spatial or self.clusters or self.readout


@dataclass(frozen=True)
class Method(ABC):
    """One way to see what mattered."""

    order: ClassVar[int] = 100  # where lists show it, the lowest first; equal ones by room, file and place in METHODS

    @property
    @abstractmethod
    def name(self) -> str:
        """Short and unique among differing settings, for tables and the command line."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """One sentence for the reader of a map."""

    @property
    @abstractmethod
    def needs(self) -> Needs: ...

    @abstractmethod
    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        """The maps, (B, H, W); those from inside the network cover all that it sees.

        Called without gradients; a method that needs them switches them on.
        """

    def at(self, place: str, model: nn.Module) -> "Method | None":
        """The same method elsewhere, as the words behind its name say; None if it is what it is.

        Those that can look at any layer take `stage 2`, or the path of a module; what does not exist shows here.
        """
        if not place or not {"stage", "layer"} <= {field.name for field in fields(self)}:
            return None
        number = re.fullmatch(r"stage (\d+)", place)
        where: dict[str, Any] = {"stage": int(number[1])} if number else {"layer": place}
        find_place(model, **where)
        return replace(self, **where)

    def missing(self, model: nn.Module) -> str | None:
        """Why this method cannot explain this model; None if it can."""
        if self.needs.gradient and not is_differentiable(model):
            return "an exported model has no gradients; explain the run that it was exported from"
        if not (self.needs.clusters or self.needs.readout):
            return lacks_map(model) if self.needs.spatial else None
        backbone = find_trunk(model)
        if backbone is None or not cluster_layers(backbone):
            return f"{type(backbone or model).__name__} has no clusters"
        if self.needs.readout and not readouts(backbone):
            return f"the classifier of this {type(backbone).__name__} does not read clusters"
        return None

    def __call__(self, model: nn.Module, images: Tensor, target: Target | Tensor | int | None = None) -> Tensor:
        if model.training:
            raise InputError("the model is in training mode, where dropout makes maps random; call model.eval() first")
        if self.needs.spatial:
            anatomy(model, images)  # of images of this size, which the model can take
        reason = self.missing(model)
        if reason is not None:
            raise InputError(f"{self.name} cannot be used here: {reason}. methods_for(model) lists what can")
        with torch.no_grad():
            heat = self.heat(model, images, resolve(model, images, target)).detach().float()
        heat = of_picture(heat, model) if self.needs.inside else heat
        return checked(self.name, heat, len(images))


def resolve(model: nn.Module, images: Tensor, target: Target | Tensor | int | None) -> Target:
    """The target, at the price of a forward pass if it is not one yet."""
    if isinstance(target, Target):
        return target
    with torch.no_grad():
        return as_target(target, model(images), len(images))


def checked(name: str, heat: Tensor, images: int) -> Tensor:
    if heat.ndim != 3 or len(heat) != images:
        raise InputError(f"{name} gave maps of shape {tuple(heat.shape)} for {images} images; (B, H, W) is needed")
    bad = (~heat.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
    if bad:
        raise InputError(
            f"the map of {name} for image {bad[0]} is not finite; the weights or the image hold NaN or huge values"
        )
    return heat


def find_trunk(model: nn.Module) -> Backbone | None:
    """The backbone of a model of any task."""
    return next((module for module in model.modules() if isinstance(module, Backbone)), None)


def trunk(model: nn.Module) -> Any:
    """The same where it must exist. Families differ in what their stages hold, hence `Any`."""
    backbone = find_trunk(model)
    if backbone is None:
        raise InputError(f"{type(model).__name__} has no vitreous backbone inside; vitreous info lists the models")
    return backbone


def clustered_stages(backbone: nn.Module) -> list[int]:
    """Numbers, from one, of the stages in which patches attend to clusters."""
    return [number for number, stage in enumerate(getattr(backbone, "stages", []), 1) if has_clusters(stage)]


def has_clusters(stage: nn.Module) -> bool:
    clusters = getattr(stage, "clusters", None)
    return clusters is not None and not isinstance(clusters, nn.Identity)


def readouts(backbone: nn.Module) -> dict[int, int]:
    """Where a classifier reads clusters: their numbers, which count on after the last stage -> the stage that is read.

    They are a layer of their own, since a stage may have both: clusters that its patches look at, and those.
    """
    stages = len(getattr(backbone, "stages", []))
    return {stages + place: int(i) + 1 for place, i in enumerate(getattr(backbone, "readout", None) or (), 1)}


def cluster_layers(backbone: nn.Module) -> list[int]:
    """Numbers of the stages with clusters, and of readouts through clusters."""
    return [*clustered_stages(backbone), *readouts(backbone)]


@contextmanager
def pixels_at_once(most: int) -> Iterator[None]:
    """Within the block, changed copies of an image run together up to so many pixels."""
    before = MOST_PIXELS_AT_ONCE.set(most)
    try:
        yield
    finally:
        MOST_PIXELS_AT_ONCE.reset(before)


def rows_at_once(images: Tensor, most: int) -> int:
    """How many copies of an image run together: `most`, or fewer of a large one, which would not fit into memory."""
    return max(1, min(most, MOST_PIXELS_AT_ONCE.get() // (images.shape[-2] * images.shape[-1])))


def to_image(heat: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (B, H, W) enlarged to the image, bilinearly."""
    return F.interpolate(heat[:, None].float(), size, mode="bilinear", align_corners=False)[:, 0]
