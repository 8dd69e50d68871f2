"""A small network that was taught to explain a frozen model: its map costs one forward pass of that model.

It reads the maps of one or two stages, is told the class, and adds what it has learned to the class activation map
where the model has one. `explanations.learning` teaches it, without labels; `explainer_folder` keeps it; `learned` is
the method. Anchors: FastSHAP (Jethani et al., arXiv 2107.07436), ViT-Shapley (Covert et al., arXiv 2206.05282) and
real-time saliency (Dabkowski, Gal, arXiv 1705.07857). Its aim is what insertion and deletion measure, and no Shapley
value; the network is ours.

Shapes: B images, K classes, C channels of a stage, R numbers of the classifier for a class, H W grid of the explainer.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.fill import standardised
from vitreous.errors import InputError

WIDTH = 64  # channels between the two convolutions
CELLS = 8  # the finer of both stages is the last with so many places across
CAUTION = 0.25  # of what is learned, beside a prior of standard deviation 1 that a few steps would else drown
SMALLEST_SPREAD = 1e-6  # by which maps are divided at least


class Inside(NamedTuple):
    """What one forward pass of a model shows."""

    maps: list[Tensor]  # (B, C, h, w) of the chosen stages
    final: Any  # what its classifier is given before pooling; of most models a map (B, R, h, w)


def look_inside(model: Any, images: Tensor, stages: Sequence[int] | None = None) -> Inside:
    """The maps of some stages, from zero; of all by default. One pass, by the interface of timm."""
    final, maps = model.forward_intermediates(images, indices=None if stages is None else list(stages))
    return Inside([found.float() for found in maps], final)


def explained_stages(maps: Sequence[Tensor]) -> tuple[int, ...]:
    """Which of all stages to read: the last with a grid that is fine enough, and the last of all."""
    fine = [number for number, found in enumerate(maps) if min(found.shape[2:]) >= CELLS]
    last = len(maps) - 1
    return tuple(sorted({fine[-1] if fine else 0, last})) if last else (0,)


def classifier_rows(model: Any) -> Tensor | None:
    """What a class is to the model: the rows (K, R) of its classifier, if that is one linear layer."""
    head = model.get_classifier() if hasattr(model, "get_classifier") else None
    return head.weight if isinstance(head, nn.Linear) else None


def class_activation(inside: Inside, rows: Tensor | None) -> Tensor | None:
    """Zhou et al., arXiv 1512.04150: the classifier at every place, (B, h, w) of one class an image, `rows` (B, R).

    A classifier that is given tokens (of clusters, or of a class) is asked about the last map.
    """
    final = inside.final if isinstance(inside.final, Tensor) and inside.final.ndim == 4 else inside.maps[-1]
    if rows is None:
        return None
    if final.shape[1] == rows.shape[1]:
        return torch.einsum("bchw,bc->bhw", final.float(), rows)
    return torch.einsum("bhwc,bc->bhw", final.float(), rows) if final.shape[3] == rows.shape[1] else None


class LearnedExplainer(nn.Module):
    """Two 3x3 convolutions on a frozen model's maps; it starts as the class activation map, or as noise."""

    mean: Tensor
    spread: Tensor

    def __init__(self, stages: Sequence[int], channels: int, classes: int, row: int, *, prior: bool) -> None:
        """`channels`: of all stages together; `row`: numbers that the classifier has for a class, or 0 for none."""
        super().__init__()
        self.stages, self.row = tuple(stages), row
        self.settings = dict(stages=list(stages), channels=channels, classes=classes, row=row, prior=prior)
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("spread", torch.ones(channels))
        self.first = nn.Conv2d(channels + prior, WIDTH, 3, padding=1)
        self.told: nn.Module = nn.Linear(row, 2 * WIDTH) if row else nn.Embedding(classes, 2 * WIDTH)
        self.last = nn.Conv2d(WIDTH, 1, 3, padding=1)
        self.trust = nn.Parameter(torch.ones(int(prior)))  # in the class activation map
        if prior:  # else its first map would be the same everywhere, and have no slope
            nn.init.zeros_(self.last.weight)
            nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]

    def forward(self, maps: Sequence[Tensor], labels: Tensor, rows: Tensor | None, prior: Tensor | None) -> Tensor:
        """The map of one class an image, (B, H, W); `rows` (B, R) are what the classifier has for it."""
        x = (self.gather(maps) - self.mean[:, None, None]) / self.spread[:, None, None]  # (B, C, H, W)
        if len(self.trust):
            assert prior is not None
            before = standardised(F.interpolate(prior[:, None], x.shape[2:], mode="bilinear", align_corners=False))
            x = torch.cat([x, before], 1)
        about = self.told(F.normalize(rows, dim=1) if rows is not None else labels)[:, :, None, None]
        scale, shift = about.chunk(2, 1)
        heat = CAUTION * self.last(F.gelu(self.first(x) * (1 + scale) + shift))
        return (heat + self.trust * before if len(self.trust) else heat)[:, 0]

    def gather(self, maps: Sequence[Tensor]) -> Tensor:
        """All maps on the grid of the first, which is the finest."""
        size = maps[0].shape[2:]
        return torch.cat(
            [maps[0], *(F.interpolate(m, size, mode="bilinear", align_corners=False) for m in maps[1:])], 1
        )

    def explain(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """The maps (B, H, W) of these classes; one pass of the model, which gets no gradient."""
        with torch.no_grad():
            inside = look_inside(model, images, self.stages)
        return self.explain_inside(model, inside, labels)

    def explain_inside(self, model: nn.Module, inside: Inside, labels: Tensor) -> Tensor:
        """The same, of what a pass has shown at `stages`."""
        with torch.no_grad():
            all_rows = classifier_rows(model)
            rows = None if all_rows is None or not self.row else all_rows[labels].float()
            prior = class_activation(inside, rows) if len(self.trust) else None
        return self([found.detach() for found in inside.maps], labels, rows, prior)


def new_explainer(model: Any, images: Tensor) -> LearnedExplainer:
    """An untaught explainer that fits the model; features are scaled as these images have them."""
    reason = unreadable(model)
    if reason is not None:
        raise InputError(f"an explainer cannot be learned: {reason}")
    with torch.no_grad():
        inside, rows = look_inside(model, images), classifier_rows(model)
        stages = explained_stages(inside.maps)
        maps = [inside.maps[stage] for stage in stages]
        prior = class_activation(inside, None if rows is None else rows[:1].expand(len(images), -1).float())
        row, channels = 0 if rows is None else rows.shape[1], sum(found.shape[1] for found in maps)
        explainer = LearnedExplainer(stages, channels, model.num_classes, row, prior=prior is not None)
        together = explainer.gather(maps)
        explainer.mean.copy_(together.mean((0, 2, 3)))
        explainer.spread.copy_(together.std((0, 2, 3)).clamp_min(SMALLEST_SPREAD))
    return explainer.to(images.device)


def unreadable(model: nn.Module) -> str | None:
    """Why no explainer can read this model; None if one can."""
    if hasattr(model, "forward_intermediates") and hasattr(model, "get_classifier"):
        return None
    return f"{type(model).__name__} has no map of places that can be read (forward_intermediates of timm)"
