"""How important every cluster of a layer is, measured in several ways that can be compared.

    RANKINGS["ablation"](model, images, target, layer)      # (B, M), higher = more important
    RANKINGS["ablation"].unit                               # what these numbers are, in words

The rankings answer different questions; the table `RANKINGS` says which. Clusters are often redundant, so that removing
one changes little although a group of them carries the decision: `removal_curve` and `groups` show that.

Shapes: B images, M clusters, H W grid of the layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.attribution.controls import noise_for
from vitreous.attribution.frame import of_picture
from vitreous.attribution.method import Needs, trunk
from vitreous.attribution.target import Target
from vitreous.clusters.contributions import by_contribution
from vitreous.clusters.gates import ROWS_AT_ONCE, PartialForward, attentions, cluster_count
from vitreous.clusters.layer import Layer
from vitreous.clusters.masking import by_masking
from vitreous.clusters.ranks import places
from vitreous.errors import InputError
from vitreous.layers.tap import record

INTEGRATION_STEPS = (
    8  # on a small trained model 4, 8 and 64 steps gave the same order of 12 clusters for each of 8 images
)


def by_ablation(
    model: nn.Module,
    images: Tensor,
    target: Target,
    layer: Layer,
    *,
    batch_size: int = ROWS_AT_ONCE,
    rest: PartialForward | None = None,
) -> Tensor:
    """Log-odds lost when one cluster is removed. A given `rest` saves the pass up to the layer."""
    rest = rest or PartialForward(model, images, layer)
    if rest.count < 2 and not layer.is_readout:
        raise InputError("this stage has one cluster, and removing it leaves nothing to attend to")
    target = target.on("log_odds")
    gates = 1 - torch.eye(rest.count)
    return rest.score(target)[:, None] - rest.scores(target, gates, batch_size=batch_size)


def by_logit_gate(
    model: nn.Module, images: Tensor, target: Target, layer: Layer, *, rest: PartialForward | None = None
) -> Tensor:
    rest = rest or PartialForward(model, images, layer)
    return gate_gradient(rest, target, images.new_ones(len(images), rest.count), "logit_gate")


def by_value_gate(
    model: nn.Module, images: Tensor, target: Target, layer: Layer, *, rest: PartialForward | None = None
) -> Tensor:
    rest = rest or PartialForward(model, images, layer)
    return gate_gradient(rest, target, images.new_ones(len(images), rest.count), "value_gate")


def gate_gradient(rest: PartialForward, target: Target, gate: Tensor, kind: str) -> Tensor:
    """Derivative of the log-odds by the gate (B, M) of every cluster, at the given values.

    What comes before the gates has no part in it, so it need not be differentiable, and runs the faster for that.
    """
    rows = torch.arange(len(gate))
    with torch.enable_grad():
        gate = gate.requires_grad_()
        score = target.on("log_odds")(rest.run(rows, **{kind: gate}))
        return torch.autograd.grad(score.sum(), gate)[0]


def by_integration(
    model: nn.Module,
    images: Tensor,
    target: Target,
    layer: Layer,
    *,
    steps: int = INTEGRATION_STEPS,
    rest: PartialForward | None = None,
) -> Tensor:
    """Value gates opened together from 0 to 1; the derivative's mean over the way (at the middle of each step)."""
    if steps < 1:
        raise InputError(f"steps={steps} given; an integral takes at least 1 step")
    rest = rest or PartialForward(model, images, layer)
    total = images.new_zeros(len(images), rest.count)
    for step in range(steps):
        total += gate_gradient(rest, target, torch.full_like(total, (step + 0.5) / steps), "value_gate") / steps
    return total


def by_attention_mass(model: nn.Module, images: Tensor, target: Target, layer: Layer) -> Tensor:
    """Mean over positions, heads and the blocks that use the clusters; sums to one."""
    mass = patch_attention(model, images, layer).sum((2, 3))
    return mass / mass.sum(1, keepdim=True)


def patch_attention(model: nn.Module, images: Tensor, layer: Layer) -> Tensor:
    """How much every position looks at each cluster, mean over heads and the blocks that use them: (B, M, H, W).

    Of a readout: how much of what the classifier reads comes from each position through each cluster.
    """
    taps = [f"{path}.map" for path in attentions(model, layer)]
    with torch.no_grad(), record(trunk(model), *taps, keep=lambda maps: maps.float().mean(1)) as recorded:
        model(images)
    return of_picture(torch.stack([recorded[tap] for tap in taps]).mean(0), model)


def at_random(model: nn.Module, images: Tensor, target: Target, layer: Layer, *, seed: int = 0) -> Tensor:
    """A control: other numbers for every image, as one cluster may lie on the object in all of them."""
    return noise_for(images, cluster_count(model, layer), seed=seed)


@dataclass(frozen=True)
class Ranking:
    """One way to measure importance: `ranking(model, images, target, layer)` gives (B, M)."""

    name: str
    unit: str  # what its numbers are, for the reader
    function: Callable[..., Tensor]
    needs: Needs

    def __call__(self, model: nn.Module, images: Tensor, target: Target, layer: Layer, **settings: Any) -> Tensor:
        return self.function(model, images, target, layer, **settings)


RANKINGS = {
    ranking.name: ranking
    for ranking in (
        Ranking(
            "masking",  # the paper's
            "probability lost when what the cluster looks at is hidden",
            by_masking,
            Needs(passes=100, clusters=True),
        ),
        Ranking(
            "ablation",  # exact, in all blocks that use the cluster; one partial pass for each cluster
            "log-odds lost when the cluster is removed",
            by_ablation,
            Needs(passes=100, clusters=True),
        ),
        Ranking(
            "logit_gate",  # the derivative by a gate on the attention logits
            "log-odds lost when the cluster is removed, to first order",
            by_logit_gate,
            Needs(passes=4, gradient=True, clusters=True),
        ),
        Ranking(
            "value_gate",  # the derivative by a gate on what is read from the cluster
            "log-odds lost when nothing is read from the cluster, to first order",
            by_value_gate,
            Needs(passes=4, gradient=True, clusters=True),
        ),
        Ranking(
            "integrated",  # value gates from all closed to all open: sums to what the clusters do together
            "log-odds the cluster adds as all are opened together",
            by_integration,
            Needs(passes=2 + INTEGRATION_STEPS, gradient=True, clusters=True),
        ),
        Ranking(
            "attention_mass",  # does not know the target
            "share of all attention the cluster receives",
            by_attention_mass,
            Needs(passes=2, target=False, clusters=True),
        ),
        Ranking(
            "contribution",  # of clusters that the classifier reads; exact, and the sum over clusters is what they do
            "what the cluster adds to the logit",
            by_contribution,
            Needs(passes=1, clusters=True, readout=True),
        ),
        Ranking("random", "a random number: a control", at_random, Needs(passes=1, target=False, clusters=True)),
    )
}


def rankings_for(layer: Layer) -> list[str]:
    """Names of the rankings that the clusters of a layer can have."""
    return [name for name, ranking in RANKINGS.items() if layer.is_readout or not ranking.needs.readout]


def removal_curve(rest: PartialForward, target: Target, importance: Tensor, counts: Sequence[int]) -> Tensor:
    """Log-odds left after removing the `count` most important clusters, for each count: (B, counts).

    A ranking is right to the degree that its curve falls early.
    """
    wrong = [count for count in counts if not 0 <= count < rest.count]
    if wrong:
        raise InputError(
            f"{wrong[0]} of {rest.count} clusters were to be removed; 0 to {rest.count - 1} can be, as one must stay"
        )
    gates = torch.stack([(places(importance) >= count).float() for count in counts], 1)  # (B, S, M)
    return rest.scores(target.on("log_odds"), gates)
