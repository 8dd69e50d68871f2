"""Maps that know nothing, or all: what a method must beat, and what it can reach at most."""

import copy
import zlib
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.fill import blurred
from vitreous.attribution.gradient import GradCam
from vitreous.attribution.method import Method, Needs
from vitreous.attribution.spatial import is_differentiable, share_anatomy
from vitreous.attribution.target import Target
from vitreous.errors import InputError

DEPTH_BLUR = (
    1 / 16
)  # standard deviation of the blur that measures how deep inside an object a place lies, in sides of it


@dataclass(frozen=True)
class RandomMap(Method):
    """Smooth noise, drawn anew for every image but the same whenever that image comes again."""

    cells: int = 8
    seed: int = 0

    order = 10
    name = "random_map"
    summary = "Control: noise."
    needs = Needs(passes=0, target=False)

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        return noise_for(images, self.cells, self.cells, seed=self.seed)


@dataclass(frozen=True)
class CentreBlob(Method):
    """A round spot in the middle, where photographers put things."""

    cells: int = 32
    width: float = 0.25  # standard deviation, in sides of the image

    order = 10
    name = "centre_blob"
    summary = "Control: a spot in the middle."
    needs = Needs(passes=0, target=False)

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        place = (torch.arange(self.cells, device=images.device) + 0.5) / self.cells - 0.5
        line = (-0.5 * (place / self.width) ** 2).exp()
        return (line[:, None] * line).expand(len(images), -1, -1)


@dataclass(frozen=True)
class RandomWeights(Method):
    """Another method on the same network with shuffled weights: what its map owes to the architecture alone."""

    method: Method
    seed: int = 0

    order = 70

    @property
    def name(self) -> str:
        return f"random_weights {self.method.name}"

    @property
    def summary(self) -> str:
        return f"Control: {self.method.name} of the network with shuffled weights."

    @property
    def needs(self) -> Needs:
        return self.method.needs

    def missing(self, model: nn.Module) -> str | None:
        if not is_differentiable(model):
            return "an exported model has no weights that could be shuffled"
        return self.method.missing(model)

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        return self.method.heat(shuffled(model, self.seed), images, target)


@dataclass(frozen=True)
class OracleMask(Method):
    """The object itself, where it is known: (B, height, width), True inside."""

    masks: Tensor = field(repr=False)

    name = "oracle_mask"
    summary = "Control: the object's true mask."
    needs = Needs(passes=0, target=False)

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        if len(self.masks) != len(images):
            raise InputError(f"{len(self.masks)} masks for {len(images)} images given; one for each is needed")
        mask = F.interpolate(self.masks[:, None].float(), images.shape[2:], mode="area").to(images.device)
        # From its middle outwards: pixels in random order would be noise and no object until all of them are there.
        return (mask * blurred(mask, DEPTH_BLUR * min(images.shape[2:])))[:, 0]


def noise_for(images: Tensor, *shape: int, seed: int = 0) -> Tensor:
    """Between 0 and 1, (B, *shape): drawn anew for every image, but the same whenever that image comes again."""
    rows = []
    for image in images:
        drawn = torch.Generator().manual_seed(zlib.crc32(image.cpu().float().contiguous().numpy().tobytes()) + seed)
        rows.append(torch.rand(shape, generator=drawn))
    return torch.stack(rows).to(images.device)


def shuffled(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy whose parameters each keep their values but in random order: same scales, nothing learned."""
    random, other = torch.Generator().manual_seed(seed), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            order = torch.randperm(parameter.numel(), generator=random).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    share_anatomy(other, model)
    return other


CONTROLS = (RandomMap(), CentreBlob(), RandomWeights(GradCam()))
