"""Ways to take something out of pictures, and the same done where it should not matter, for comparison.

A suspect is tried by a `Change`. `without` is the model's answer with the suspect hidden. `controls` are answers after
changes of the same size that a model without the shortcut feels as much: regions elsewhere, or, where there is no
elsewhere, the same thing taken from another picture with the same answer. `exchanged` puts in its place what another
picture has there: an answer that then becomes the other picture's has followed it.

Where the object is known, it stays untouched by all of this: an answer that changes has not lost the truth.

Shapes: B pictures, H W their sides, K classes, R other pictures that things are taken from.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.fill import BLUR, baseline, blend, blurred
from vitreous.attribution.method import to_image
from vitreous.clusters.gates import PartialForward
from vitreous.clusters.layer import Layer
from vitreous.data.regions import Box, box_pixels
from vitreous.suspects.looks import Look, grid_of_looks

CONTROLS = 2  # changes elsewhere for each picture
MOST_OVERLAP = 0.25  # of a control with the suspect, in shares of its area
TRIES = 8  # to place a control
BORDER_CELLS = 16  # a side, of the grid on which the background is guessed


class Seen(NamedTuple):
    """Pictures as the model sees them, and what is known about them."""

    images: Tensor  # (B, 3, H, W)
    ground: Tensor  # (B, 1, H, W), 1 where no object is, as far as is known
    known: Tensor  # (B,), whether the object is known
    answers: Tensor  # (B,)

    def take(self, rows: Tensor) -> "Seen":
        return Seen(*(value[rows.to(value.device)] for value in self))


class Change(ABC):
    """One thing taken out of pictures."""

    @abstractmethod
    def without(self, model: nn.Module, seen: Seen) -> Tensor:
        """Logits (B, K) with it hidden."""

    def controls(self, model: nn.Module, seen: Seen, seed: int) -> list[Tensor]:
        """Logits after comparable changes; none: there is no elsewhere, and an exchange takes their place."""
        return []

    def exchanged(self, seen: Seen, others: Seen) -> Tensor | None:
        """Pictures (B, 3, H, W) with what other pictures, one for each, have in its place."""
        return None

    def hidden(self, seen: Seen) -> Tensor | None:
        """Pictures with it hidden, where hiding changes pixels."""
        return None


class PixelChange(Change):
    """What is hidden in the picture itself."""

    @abstractmethod
    def hidden(self, seen: Seen) -> Tensor: ...

    def without(self, model: nn.Module, seen: Seen) -> Tensor:
        return model(self.hidden(seen))


class RegionChange(PixelChange):
    """A part of the picture, filled with a blur of its surroundings."""

    @abstractmethod
    def mask(self, seen: Seen) -> Tensor:
        """(B, 1, H, W), 1 inside; whatever is there."""

    @abstractmethod
    def elsewhere(self, mask: Tensor, random: torch.Generator) -> Tensor:
        """As large an area at another place, (B, 1, H, W)."""

    def hidden(self, seen: Seen) -> Tensor:
        return filled(seen.images, self.mask(seen) * seen.ground)

    def controls(self, model: nn.Module, seen: Seen, seed: int) -> list[Tensor]:
        mask, random = self.mask(seen), torch.Generator().manual_seed(seed)
        return [model(filled(seen.images, self.elsewhere(mask, random) * seen.ground)) for _ in range(CONTROLS)]

    def exchanged(self, seen: Seen, others: Seen) -> Tensor:
        return blend(seen.images, 1 - self.mask(seen) * seen.ground, without_object(others))


@dataclass(frozen=True)
class Place(RegionChange):
    """The same box in all pictures."""

    box: Box

    def mask(self, seen: Seen) -> Tensor:
        B, _, H, W = seen.images.shape
        mask = torch.zeros(1, 1, H, W, device=seen.images.device)
        rows, columns = box_pixels(self.box, H, W)
        mask[..., rows, columns] = 1
        return mask.expand(B, 1, H, W)

    def elsewhere(self, mask: Tensor, random: torch.Generator) -> Tensor:
        """A box of the same sides, or lying on its side, drawn anew for each picture."""
        B, _, H, W = mask.shape
        own, result = mask[0, 0].bool(), torch.zeros_like(mask)
        tall, wide = int(own.any(1).sum()), int(own.any(0).sum())
        for b in range(B):
            best: tuple[float, Tensor] | None = None
            for turned in range(TRIES):
                h, w = (wide, tall) if turned % 2 and wide <= H and tall <= W else (tall, wide)
                top, left = (int(torch.randint(side + 1, (), generator=random)) for side in (H - h, W - w))
                part = torch.zeros_like(own)
                part[top : top + h, left : left + w] = True
                overlap = float((part & own).sum() / own.sum())
                if best is None or overlap < best[0]:
                    best = overlap, part
                if overlap <= MOST_OVERLAP:
                    break
            assert best is not None
            result[b, 0] = best[1].to(result)
        return result


@dataclass(frozen=True)
class Alike(RegionChange):
    """All parts of a picture that look alike, wherever they are."""

    look: Look

    def mask(self, seen: Seen) -> Tensor:
        near = self.look.distance(grid_of_looks(seen.images, self.look.cells)) <= self.look.radius  # (B, G, G)
        return F.interpolate(near[:, None].to(seen.images.dtype), seen.images.shape[2:], mode="nearest")

    def elsewhere(self, mask: Tensor, random: torch.Generator) -> Tensor:
        """The same parts, moved together across the border."""
        H, W = mask.shape[2:]
        moves = [
            (int(torch.randint(H, (), generator=random)), int(torch.randint(W, (), generator=random))) for _ in mask
        ]
        moved = torch.stack([part.roll(move, (-2, -1)) for part, move in zip(mask, moves, strict=True)])
        return moved * (1 - mask)


@dataclass(frozen=True)
class Background(PixelChange):
    """All that is no object: by the masks or, without them, all that looks like the border of the picture."""

    def mask(self, seen: Seen) -> Tensor:
        guessed = like_border(seen.images)
        return torch.where(seen.known.view(-1, 1, 1, 1), seen.ground, guessed)

    def hidden(self, seen: Seen) -> Tensor:
        return blend(seen.images, 1 - self.mask(seen), baseline(seen.images, "blur"))

    def exchanged(self, seen: Seen, others: Seen) -> Tensor:
        theirs = blend(others.images, self.mask(others), baseline(others.images, "blur"))
        return blend(seen.images, 1 - self.mask(seen), theirs)


@dataclass(frozen=True, eq=False)
class PictureTint(PixelChange):
    """The mean colour of the picture; hidden, all pictures have the mean colour of the data."""

    usual: Tensor  # (3,), the mean of `ground_colour` over the data

    def hidden(self, seen: Seen) -> Tensor:
        return seen.images - ground_colour(seen) + self.usual.to(seen.images).view(1, 3, 1, 1)

    def exchanged(self, seen: Seen, others: Seen) -> Tensor:
        return seen.images - ground_colour(seen) + ground_colour(others)


@dataclass(frozen=True)
class Gate(Change):
    """A cluster of a layer, whose gate is closed; the controls close each of the others."""

    layer: Layer
    cluster: int
    count: int

    def without(self, model: nn.Module, seen: Seen) -> Tensor:
        return self.closed(model, seen, [self.cluster])[0]

    def controls(self, model: nn.Module, seen: Seen, seed: int) -> list[Tensor]:
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(seed)).tolist()
        return self.closed(model, seen, [other for other in order if other != self.cluster][:CONTROLS])

    def closed(self, model: nn.Module, seen: Seen, clusters: list[int]) -> list[Tensor]:
        rest, rows = PartialForward(model, seen.images, self.layer), torch.arange(len(seen.images))
        answers = []
        for cluster in clusters:
            kept = torch.ones(len(rows), self.count, device=seen.images.device)
            kept[:, cluster] = 0
            answers.append(rest.without(rows, kept))
        return answers


def ground_colour(seen: Seen) -> Tensor:
    """Mean colour of what is no object, or of the whole picture where it is all object: (B, 3, 1, 1)."""
    ground = torch.where(
        seen.ground.any(3, keepdim=True).any(2, keepdim=True), seen.ground, torch.ones(()).to(seen.ground)
    )
    return (seen.images * ground).sum((2, 3), keepdim=True) / ground.sum((2, 3), keepdim=True)


def filled(images: Tensor, mask: Tensor) -> Tensor:
    """Pictures whose part inside the mask is a blur of what is outside.

    The plain blur of a picture keeps the colour of what is to be hidden, at the border even more than elsewhere.
    """
    deviation, keep = BLUR * min(images.shape[2:]), 1 - mask
    weight = blurred(keep, deviation)
    mean = (images * keep).sum((2, 3), keepdim=True) / keep.sum((2, 3), keepdim=True).clamp_min(1)
    around = blurred((images - mean) * keep, deviation) / weight.clamp_min(1e-3) + mean
    return blend(images, keep, around)


def without_object(seen: Seen) -> Tensor:
    """Pictures with their object blurred, where it is known."""
    return blend(seen.images, seen.ground, baseline(seen.images, "blur"))


def like_border(images: Tensor) -> Tensor:
    """A guess at the background: all that has a colour of the picture's border, (B, 1, H, W).

    Objects seldom lie along the border (Wei et al., ECCV 2012, call it the background prior). A part belongs to the
    background if its colour is nearer to that of some part of the border than to the colour farthest from it.
    """
    cells = F.adaptive_avg_pool2d(images, BORDER_CELLS)  # (B, 3, G, G)
    colours = cells.flatten(2).transpose(1, 2)  # (B, N, 3)
    edge = torch.ones(BORDER_CELLS, BORDER_CELLS, dtype=torch.bool, device=images.device)
    edge[1:-1, 1:-1] = False
    distance = torch.cdist(colours, colours[:, edge.flatten()]).amin(2)  # (B, N)
    inner = (distance < distance.amax(1, keepdim=True) / 2).view(-1, BORDER_CELLS, BORDER_CELLS)
    return to_image(inner.to(images.dtype), (images.shape[2], images.shape[3]))[:, None].round()
