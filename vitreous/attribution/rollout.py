"""Attention rollout: attention followed back from the pooled output to the positions it came from.

Abnar, Zuidema: "Quantifying Attention Flow in Transformers", arXiv 2005.00928. Each block hands on half of what it has
(the shortcut) and half of what its attention read. A patch that attends to clusters reads the positions under their
maps, so a block of PaCa mixes positions by attention times assignment; following one vector back through both takes
linear time. Between stages a coarse position stands for those of its cell. In a block of PartialFormer the foreground
reads itself and all of the background what the single query reads there; heads that are mixed may get weights below
zero, of which the positive part is followed.

Of other models it is defined for plain vision transformers, from the tokens that the classifier reads. Elsewhere
positions are mixed in ways that attention weights do not tell: by channel attention (XCiT), convolutions (EMSNet), or
the sum of two readings, within windows and through abstract tokens, of which either may be the larger (MAT).
"""

import re
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
from vitreous.layers.partial_attention import PartialAttention
from vitreous.layers.tap import record

PARTIAL = ("positions", "mixed", "background")  # taps of PartialFormer's attention
ON_GRID = r"attention\.(map|foreground)$"  # taps whose last two axes are the grid


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
            able = any(views(model, kind) for kind in ("patch_to_cluster", "patch_to_patch", "foreground_query"))
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
            grid = next(seen[name].shape[-2:] for name in seen if re.match(rf"stages\.{i}\..*{ON_GRID}", name))
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
    if isinstance(stage.blocks[0].attention, PartialAttention):
        return [f"blocks.*.attention.{name}" for name in (*PARTIAL, "foreground")]
    return [*(["clusters*"] if has_clusters(stage) else []), "blocks.*.attention.map"]


def start(images: Tensor, grid: torch.Size) -> Tensor:
    """All positions alike, as the classifier takes their mean."""
    return torch.full((len(images), *grid), 1 / grid.numel(), device=images.device)


def spread(flow: Tensor, grid: torch.Size) -> Tensor:
    finer = F.interpolate(flow[:, None], grid, mode="nearest")[:, 0]
    return finer / finer.sum((1, 2), keepdim=True)


def back(flow: Tensor, seen: dict[str, Tensor], stage: int, block: int) -> Tensor:
    """Through one block: (B, H, W) over its outputs -> over its inputs."""
    if f"stages.{stage}.blocks.{block}.attention.mixed" in seen:
        positions, mixed, background = (seen.get(f"stages.{stage}.blocks.{block}.attention.{name}") for name in PARTIAL)
        assert positions is not None
        assert mixed is not None
        return 0.5 * flow + 0.5 * partial_read(flow, positions, mixed, background)
    attention = seen[f"stages.{stage}.blocks.{block}.attention.map"].mean(1)  # (B, M, H, W)
    read = torch.einsum("bhw,bmhw->bm", flow, attention)
    makers = [j for j in range(block + 1) if f"stages.{stage}.clusters.{j}" in seen]
    clusters = seen.get(f"stages.{stage}.clusters.{makers[-1]}" if makers else f"stages.{stage}.clusters")
    if clusters is None:  # the keys are the positions themselves
        return 0.5 * flow + 0.5 * read.view_as(flow)
    return 0.5 * flow + 0.5 * torch.einsum("bm,bmhw->bhw", read, clusters)


def partial_read(flow: Tensor, positions: Tensor, mixed: Tensor, background: Tensor | None) -> Tensor:
    """Where the foreground (B, F) and, by one query, the background of a map (B, H, W) read from.

    The weights (B, h, 1 + F, 1 + F) also have the abstract token, which comes from no position and is left out.
    """
    share, read = flow.flatten(1), torch.zeros_like(flow).flatten(1)
    weights = mixed.float().mean(1)[:, 1:, 1:].clamp_min(0)  # (B, F, F)
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-12)
    front = share.gather(1, positions)  # (B, F)
    read.scatter_(1, positions, (front[:, None] @ weights)[:, 0])
    rest = share.scatter(1, positions, 0.0)
    if background is None:  # without a single query the background reads itself only
        return (read + rest).view_as(flow)
    single = background.float().mean(1).flatten(1)  # (B, H W), sums to one
    return (read + rest.sum(1, keepdim=True) * single).view_as(flow)


METHODS = (Rollout(),)
