"""Attention rollout: attention followed back from the pooled output to the positions it came from.

Abnar, Zuidema: "Quantifying Attention Flow in Transformers", arXiv 2005.00928. Each block hands on half of what it has
(the shortcut) and half of what its attention read. A patch that attends to clusters reads the positions under their
maps, so a block of PaCa mixes positions by attention times assignment; following one vector back through both takes
linear time. Between stages a coarse position stands for those of its cell.

Of other models it is defined for plain vision transformers, from the tokens that the classifier reads. Windows,
convolutions and channel attention mix positions in ways that attention weights do not tell.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.attention import record_attention
from vitreous.attribution.method import Method, Needs, clustered_stages, find_trunk, has_clusters, readouts, trunk
from vitreous.attribution.spatial import anatomy, unwrapped
from vitreous.attribution.target import Target
from vitreous.attribution.views import views
from vitreous.errors import InputError
from vitreous.layers.tap import record


@dataclass(frozen=True)
class Rollout(Method):
    """`stage`: where to stop, from one; the default is the last with clusters, or the last of all."""

    stage: int | None = None

    order = 30
    name = "rollout"
    summary = "Attention followed back through all blocks; it does not know what is explained."
    needs = Needs(passes=1, target=False, spatial=True)

    def missing(self, model: nn.Module) -> str | None:
        reason = super().missing(model)
        backbone = find_trunk(model)
        if backbone is not None:
            able = bool(views(model, "patch_to_cluster") or views(model, "patch_to_patch"))
        else:
            able = reason is None and bool(anatomy(model).attention) and not anatomy(model).mixed_otherwise
        return (
            reason
            if able or reason
            else f"{type(backbone or unwrapped(model)).__name__} does not mix positions by attention alone"
        )

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        if find_trunk(model) is None:
            if self.stage not in (None, 1):
                raise InputError(
                    f"stage {self.stage} does not exist; {type(unwrapped(model)).__name__} has one stage of tokens"
                )
            return token_flow(model, images)
        stages = trunk(model).stages
        stop = self.stage or (clustered_stages(trunk(model)) or [len(stages)])[-1]
        if not 1 <= stop <= len(stages):
            raise InputError(f"stage {stop} does not exist; this model has stages 1 to {len(stages)}")
        taps = [f"stages.{i}.{name}" for i in range(stop - 1, len(stages)) for name in stage_taps(stages[i])]
        taps += ["readout.*.attention.map"] if readouts(trunk(model)) else []
        with record(trunk(model), *taps) as seen:
            model(images)
        flow: Tensor | None = None
        for i in reversed(range(stop - 1, len(stages))):
            grid = seen[f"stages.{i}.blocks.0.attention.map"].shape[-2:]
            read = seen.get(f"readout.{i}.attention.map")  # (B, 1, M, H, W), of a classifier that reads clusters
            begun = start(images, grid) if read is None else read.float().sum((1, 2))
            flow = begun if flow is None else spread(flow, grid) + (0 if read is None else begun)
            for j in reversed(range(len(stages[i].blocks))):
                flow = back(flow, seen, i, j)
        assert flow is not None
        return flow


def token_flow(model: nn.Module, images: Tensor) -> Tensor:
    """Through all layers of a vision transformer, from the tokens that the answer depends on: (B, H, W)."""
    known = anatomy(model, images)
    with record_attention(model) as seen:
        model(images)
    place, attention = known.attention[-1], [weights.float().mean(1) for weights in seen.values()]  # each (B, N, N)
    count = attention[-1].shape[-1]
    reads = known.reads if known.reads is not None and len(known.reads) == count and known.reads.any() else None
    if reads is None:  # all patches alike
        reads = (torch.arange(count) >= place.prefix).float()
    flow = (reads / reads.sum()).to(images).expand(len(images), 1, -1)  # (B, 1, N)
    for weights in reversed(attention):
        flow = 0.5 * flow + 0.5 * flow @ weights
    return flow[:, 0, place.prefix :].unflatten(1, place.grid)


def stage_taps(stage: Any) -> list[str]:
    return [*(["clusters*"] if has_clusters(stage) else []), "blocks.*.attention.map"]


def start(images: Tensor, grid: torch.Size) -> Tensor:
    """All positions alike, as the classifier takes their mean."""
    return torch.full((len(images), *grid), 1 / grid.numel(), device=images.device)


def spread(flow: Tensor, grid: torch.Size) -> Tensor:
    finer = F.interpolate(flow[:, None], grid, mode="nearest")[:, 0]
    return finer / finer.sum((1, 2), keepdim=True)


def back(flow: Tensor, seen: dict[str, Tensor], stage: int, block: int) -> Tensor:
    """Through one block: (B, H, W) over its outputs -> over its inputs."""
    attention = seen[f"stages.{stage}.blocks.{block}.attention.map"].mean(1)  # (B, M, H, W)
    read = torch.einsum("bhw,bmhw->bm", flow, attention)
    makers = [j for j in range(block + 1) if f"stages.{stage}.clusters.{j}" in seen]
    clusters = seen.get(f"stages.{stage}.clusters.{makers[-1]}" if makers else f"stages.{stage}.clusters")
    if clusters is None:  # the keys are the positions themselves
        return 0.5 * flow + 0.5 * read.view_as(flow)
    return 0.5 * flow + 0.5 * torch.einsum("bm,bmhw->bhw", read, clusters)


METHODS = (Rollout(),)
