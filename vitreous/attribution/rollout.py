"""Attention rollout: attention followed back from the pooled output to the positions it came from.

Abnar, Zuidema: "Quantifying Attention Flow in Transformers", arXiv 2005.00928. Each block hands on half of what it has
(the shortcut) and half of what its attention read. A patch that attends to clusters reads the positions under their
maps, so a block of PaCa mixes positions by attention times assignment; following one vector back through both takes
linear time. Between stages a coarse position stands for those of its cell.

Defined for PaCa only: XCiT mixes positions by channels, and the others mix them by convolutions and gates as well.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.method import Method, Needs, clustered_stages, find_trunk, has_clusters, readouts, trunk
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
    needs = Needs(passes=1, target=False, trunk=True)

    def missing(self, model: nn.Module) -> str | None:
        if find_trunk(model) is None or views(model, "patch_to_cluster") or views(model, "patch_to_patch"):
            return super().missing(model)
        return f"{type(trunk(model)).__name__} does not mix positions by attention alone"

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
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
