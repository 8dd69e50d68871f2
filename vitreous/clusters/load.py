"""Causal load: how much a prediction depends on the clusters of a stage at all.

A map of a stage that carries no load is decoration, however sharp it looks. Three interventions measure it:

uniform         every cluster is the mean of all patches: what the clustering finds is thrown away
attention_off   the attention of the stage's blocks adds nothing; a readout reads nothing, and only the bias is left
all but k       only the k clusters with the largest logit-gate gradient are left, for each k

    for load in causal_load(model, images, target):
        print(load.stage, load.drop("uniform").mean(), load.flips("uniform").float().mean())

Shapes: B images.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.attribution.method import cluster_layers, readouts, trunk
from vitreous.attribution.target import Target
from vitreous.clusters.gates import PartialForward, cluster_blocks, cluster_count, cluster_layer, cluster_stage
from vitreous.clusters.importance import by_logit_gate
from vitreous.clusters.layer import Layer, listed_layers
from vitreous.clusters.ranks import places
from vitreous.errors import InputError
from vitreous.layers.tap import Tap

CARRIES = 0.1  # mean change of log-odds under uniform assignment from which on a stage is said to carry load


@dataclass(frozen=True)
class Load:
    """One stage. `scores` are log-odds and `held` whether the answer stayed, by intervention, each (B,)."""

    stage: int
    before: Tensor
    held_before: Tensor
    scores: dict[str, Tensor]
    held: dict[str, Tensor]
    decides: str = "uniform"  # the intervention that shows whether clusters matter; of a readout, which is all that the
    # classifier sees, it is to read nothing

    def drop(self, intervention: str = "uniform") -> Tensor:
        """Log-odds lost, (B,)."""
        return self.before - self.scores[intervention]

    def flips(self, intervention: str = "uniform") -> Tensor:
        """Images whose answer was the target and no longer is, (B,)."""
        return self.held_before & ~self.held[intervention]

    @property
    def carries(self) -> Tensor:
        """Whether the stage's clusters matter for an image, (B,)."""
        return self.drop(self.decides).abs() >= CARRIES


@contextmanager
def uniform(model: nn.Module, stage: int) -> Iterator[None]:
    """Every cluster of a stage spreads evenly over the image."""
    clusters = cluster_stage(model, stage)[1].clusters
    with ExitStack() as cleanup:
        for tap in clusters.modules():
            if isinstance(tap, Tap):
                handle = tap.register_forward_hook(lambda _tap, _inputs, z: torch.full_like(z, 1 / z[0, 0].numel()))
                cleanup.callback(handle.remove)
        yield


@contextmanager
def attention_off(model: nn.Module, stage: int) -> Iterator[None]:
    """The attention branches of a stage add nothing."""
    with ExitStack() as cleanup:
        for block in cluster_blocks(model, stage).values():
            handle = block.attention.register_forward_hook(lambda _module, _inputs, out: torch.zeros_like(out))
            cleanup.callback(handle.remove)
        yield


def causal_load(
    model: nn.Module,
    images: Tensor,
    target: Target,
    *,
    stages: Sequence[int] | None = None,
    keep: Sequence[int] = (1, 4),
    output: Any = None,
) -> list[Load]:
    """The load of every stage with clusters, or of the given ones (numbered from one), for a batch of images.

    A given `output` of the model for these images saves a pass.
    """
    known, read = cluster_layers(trunk(model)), readouts(trunk(model))
    for stage in known if stages is None else stages:
        if stage not in known:
            raise InputError(f"stage {stage} has no clusters; stages with clusters: {listed_layers(known, read)}")
    if output is None:
        with torch.no_grad():
            output = model(images)
    return [stage_load(model, images, target.on("log_odds"), stage, keep, output) for stage in stages or known]


def stage_load(model: nn.Module, images: Tensor, target: Target, stage: int, keep: Sequence[int], output: Any) -> Load:
    with torch.no_grad():
        outputs: dict[str, Any] = {}
        with uniform(model, stage):
            outputs["uniform"] = model(images)
        with attention_off(model, stage):
            outputs["attention_off"] = model(images)
        layer = cluster_layer(model, stage)
        if keep and layer.block is None:  # where every block clusters anew there is no one set of clusters to keep
            outputs |= all_but(model, images, target, layer, [k for k in keep if k < cluster_count(model, layer)])
    scores = {name: target(result) for name, result in outputs.items()}
    held = {name: target.holds(result) for name, result in outputs.items()}
    decides = "attention_off" if layer.is_readout else "uniform"
    return Load(stage, target(output), target.holds(output), scores, held, decides)


def all_but(model: nn.Module, images: Tensor, target: Target, layer: Layer, keep: Sequence[int]) -> dict[str, Any]:
    if any(k < 1 for k in keep):
        raise InputError(f"keep={tuple(keep)} given; at least 1 cluster must stay")
    rest, rows = PartialForward(model, images, layer), torch.arange(len(images))
    place = places(by_logit_gate(model, images, target, layer, rest=rest))
    return {f"all but {k}": rest.without(rows, (place < k).float()) for k in keep}
