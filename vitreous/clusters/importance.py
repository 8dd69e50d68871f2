"""How important every cluster of a layer is, measured in several ways that can be compared.

    RANKINGS["ablation"](model, images, target, layer)      # (B, M), higher = more important

"masking"         the paper's: probability lost when what the cluster looks at is hidden in the image
"ablation"        exact: log-odds lost when the cluster is removed in all blocks that use it; M partial passes
"logit_gate"      first-order form of ablation: derivative by a gate on the attention logits; one pass and back
"value_gate"      the same for a gate on what is read from the cluster
"integrated"      value gates integrated from all closed to all open: sums to what the clusters do together
"attention_mass"  share of all attention the cluster receives; does not know the target
"random"          control

They answer different questions. Clusters are often redundant, so that removing one changes little although a group of
them carries the decision: `removal_curve` and `maps.groups` show that.

Shapes: B images, M clusters, H W grid of the layer.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from vitreous.attribution.fill import Fill, baseline, blend
from vitreous.attribution.frame import of_picture
from vitreous.attribution.method import rows_at_once, trunk
from vitreous.attribution.noise import noise_for
from vitreous.attribution.target import Target
from vitreous.clusters.gates import ROWS, Rest, cluster_count, maps_of, users
from vitreous.clusters.masking import Interpolation, Layer, keep_masks
from vitreous.clusters.ranks import places, rank_correlation
from vitreous.errors import InputError
from vitreous.layers.tap import record

MASKED = 16  # pictures that run together
STEPS = 8  # on a small trained model 4, 8 and 64 steps gave the same order of 12 clusters for each of 8 images


def by_masking(
    model: nn.Module,
    images: Tensor,
    target: Target,
    layer: Layer,
    *,
    fill: Fill | Tensor = "mean",
    interpolation: Interpolation = "bilinear",
    batch_size: int = MASKED,
    maps: Tensor | None = None,
) -> Tensor:
    """Probability lost when the stretched map of a cluster is hidden; "mean" is the paper's grey.

    To hide before normalisation give black's normalised value as `fill`. `maps` (B, M, H, W) take the place of the
    clusters' own, such as the attention paid to them.
    """
    target = target.on("probability")
    with torch.no_grad():
        output, own = maps_of(model, images, layer) if maps is None else (model(images), maps)
        own = of_picture(own, model) if maps is None else own
        hidden, height, width = baseline(images, fill), *images.shape[-2:]
        after = []
        for b, of_image in enumerate(own.float()):
            for part in of_image.split(rows_at_once(images, batch_size)):
                masked = blend(images[b], keep_masks(part, (height, width), interpolation), hidden[b])
                after.append(target.select(torch.full((len(part),), b))(model(masked)))
        return target(output)[:, None] - torch.cat(after).view(own.shape[:2])


def by_ablation(
    model: nn.Module, images: Tensor, target: Target, layer: Layer, *, batch_size: int = ROWS, rest: Rest | None = None
) -> Tensor:
    """Log-odds lost when one cluster is removed. A given `rest` saves the pass up to the layer."""
    rest = rest or Rest(model, images, layer)
    if rest.count < 2:
        raise InputError("this stage has one cluster, and removing it leaves nothing to attend to")
    target = target.on("log_odds")
    gates = 1 - torch.eye(rest.count)
    return rest.score(target)[:, None] - rest.scores(target, gates, batch_size=batch_size)


def by_logit_gate(
    model: nn.Module, images: Tensor, target: Target, layer: Layer, *, rest: Rest | None = None
) -> Tensor:
    rest = rest or Rest(model, images, layer)
    return gate_gradient(rest, target, images.new_ones(len(images), rest.count), "logit_gate")


def by_value_gate(
    model: nn.Module, images: Tensor, target: Target, layer: Layer, *, rest: Rest | None = None
) -> Tensor:
    rest = rest or Rest(model, images, layer)
    return gate_gradient(rest, target, images.new_ones(len(images), rest.count), "value_gate")


def gate_gradient(rest: Rest, target: Target, gate: Tensor, kind: str) -> Tensor:
    """Derivative of the log-odds by the gate (B, M) of every cluster, at the given values.

    What comes before the gates has no part in it, so it need not be differentiable, and runs the faster for that.
    """
    rows = torch.arange(len(gate))
    with torch.enable_grad():
        gate = gate.requires_grad_()
        score = target.on("log_odds")(rest.run(rows, **{kind: gate}))
        return torch.autograd.grad(score.sum(), gate)[0]


def by_integration(
    model: nn.Module, images: Tensor, target: Target, layer: Layer, *, steps: int = STEPS, rest: Rest | None = None
) -> Tensor:
    """Value gates opened together from 0 to 1; the derivative's mean over the way (at the middle of each step)."""
    if steps < 1:
        raise InputError(f"steps={steps} given; an integral takes at least 1 step")
    rest = rest or Rest(model, images, layer)
    total = images.new_zeros(len(images), rest.count)
    for step in range(steps):
        total += gate_gradient(rest, target, torch.full_like(total, (step + 0.5) / steps), "value_gate") / steps
    return total


def by_attention_mass(model: nn.Module, images: Tensor, target: Target, layer: Layer) -> Tensor:
    """Mean over positions, heads and the blocks that use the clusters; sums to one."""
    return patch_attention(model, images, layer).mean((2, 3))


def patch_attention(model: nn.Module, images: Tensor, layer: Layer) -> Tensor:
    """How much every position looks at each cluster, mean over heads and the blocks that use them: (B, M, H, W)."""
    taps = [f"stages.{layer.stage - 1}.blocks.{j}.attention.map" for j in users(model, layer)]
    with torch.no_grad(), record(trunk(model), *taps) as recorded:
        model(images)
    return of_picture(torch.stack([recorded[tap].float().mean(1) for tap in taps]).mean(0), model)


def at_random(model: nn.Module, images: Tensor, target: Target, layer: Layer, *, seed: int = 0) -> Tensor:
    """A control: other numbers for every image, as one cluster may lie on the object in all of them."""
    return noise_for(images, cluster_count(model, layer), seed=seed)


Importance = Callable[[nn.Module, Tensor, Target, Layer], Tensor]
RANKINGS: dict[str, Importance] = {
    "masking": by_masking,
    "ablation": by_ablation,
    "logit_gate": by_logit_gate,
    "value_gate": by_value_gate,
    "integrated": by_integration,
    "attention_mass": by_attention_mass,
    "random": at_random,
}


def removal_curve(rest: Rest, target: Target, importance: Tensor, counts: Sequence[int]) -> Tensor:
    """Log-odds left after removing the `count` most important clusters, for each count: (B, counts).

    A ranking is right to the degree that its curve falls early.
    """
    check_counts(counts, rest.count)
    gates = torch.stack([(places(importance) >= count).float() for count in counts], 1)  # (B, S, M)
    return rest.scores(target.on("log_odds"), gates)


def check_counts(counts: Sequence[int], clusters: int) -> None:
    wrong = [count for count in counts if not 0 <= count < clusters]
    if wrong:
        raise InputError(
            f"{wrong[0]} of {clusters} clusters were to be removed; 0 to {clusters - 1} can be, as one must stay"
        )


def agreement(importances: dict[str, Tensor]) -> dict[str, dict[str, float]]:
    """Mean Spearman correlation over images of every ranking with every other."""
    return {
        a: {b: rank_correlation(importances[a], importances[b]).mean().item() for b in importances} for a in importances
    }
