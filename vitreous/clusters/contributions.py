"""What each cluster adds to a logit, exactly, where the classifier reads clusters and nothing else.

    found = contributions(model, images)
    found.bias + found.values.sum(2)                  # the logits (B, K), where one stage is read
    found.maps(labels).sum((2, 3))                    # the contributions of the clusters to these classes, (B, M)

A logit is its bias plus, for every cluster m, the sum over positions n of a_m Z_mn W_k x_n (`layers/readout.py`). All
of it comes from one forward pass. Where several stages are read, their contributions add up; `others` is what the
readouts of the other stages contribute.

Shapes: B images, K classes, M clusters, C features of the classifier, H W grid of the layer.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.method import Method, Needs, find_trunk, readouts, trunk
from vitreous.attribution.target import ClassTarget, Target
from vitreous.clusters.gates import PartialForward, attentions, cluster_layer
from vitreous.clusters.layer import Layer
from vitreous.clusters.token_gradient import gathered
from vitreous.errors import InputError
from vitreous.layers.tap import record


@dataclass(frozen=True, eq=False)
class Contributions:
    """Of the clusters of one readout: `bias + others + values.sum(2)` are the logits."""

    layer: Layer
    logits: Tensor  # (B, K)
    bias: Tensor  # (K,)
    others: Tensor  # (B, K), of readouts of other stages
    values: Tensor  # (B, K, M)
    tokens: Tensor  # (B, M, C), each times the weight with which it is read
    shares: Tensor  # (B, M, H, W): how much of all that is read comes from each place through each cluster
    evidence: Tensor  # (B, K, H, W): what the classifier says about each place

    def maps(self, labels: Tensor) -> Tensor:
        """Where the contributions to one class of each image come from: (B, M, H, W), which adds up to them."""
        return self.shares * self.evidence[torch.arange(len(labels)), labels][:, None]

    def of(self, labels: Tensor) -> Tensor:
        """The contributions to one class of each image, (B, M)."""
        return self.values[torch.arange(len(labels)), labels]


def contributions(
    model: nn.Module, images: Tensor, layer: Layer | None = None, *, rest: PartialForward | None = None
) -> Contributions:
    """Contributions to all logits from one forward pass; a given `rest` saves most of that.

    Gates that are set apply, as to any pass.
    """
    backbone = find_trunk(model)
    if backbone is None or not readouts(backbone):
        raise InputError(
            f"the classifier of this {type(backbone or model).__name__} does not read clusters; train a PaCa model "
            "with readout=clusters, such as paca_b0_readout"
        )
    layer = layer or cluster_layer(model)
    if not layer.is_readout:
        raise InputError(f"{layer.name} contributes to the logits through other layers; the readout does so directly")
    if not backbone.num_classes:
        raise InputError("this model has no classifier (num_classes=0), so that nothing contributes to a class")
    ((path, attention),) = attentions(model, layer).items()
    with torch.no_grad(), record(backbone, f"{path}.map") as seen, gathered([attention]) as (read,):
        logits = model(images) if rest is None else rest.run(torch.arange(len(images)))
        shares, x = (
            seen[f"{path}.map"][:, 0],
            beside_others(backbone, layer, read["patches"]),
        )  # (B, M, H, W), (B, H, W, C)
        tokens = shares.flatten(2) @ x.flatten(1, 2)  # (B, M, C)
        bias = backbone.head(torch.zeros_like(tokens[:1, 0]))[0]  # the layer is called, whatever has been made of it
        values = (backbone.head(tokens) - bias).transpose(1, 2)  # (B, K, M)
        evidence = (backbone.head(x) - bias).permute(0, 3, 1, 2)  # (B, K, H, W)
    others = logits - bias - values.sum(2) if len(readouts(backbone)) > 1 else torch.zeros_like(logits)
    return Contributions(layer, logits, bias, others, values, tokens, shares, evidence)


def beside_others(backbone: nn.Module, layer: Layer, x: Tensor) -> Tensor:
    """Features (..., C of the stage) among those of all stages that are read, which the classifier takes: (..., C)."""
    widths = [trunk(backbone).channels[stage - 1] for stage in readouts(backbone).values()]
    place = list(readouts(backbone)).index(layer.stage)
    return F.pad(x, (sum(widths[:place]), sum(widths[place + 1 :])))


def by_contribution(
    model: nn.Module, images: Tensor, target: Target, layer: Layer, *, rest: PartialForward | None = None
) -> Tensor:
    return contributions(model, images, layer, rest=rest).of(class_of(target))


def class_of(target: Target) -> Tensor:
    if not isinstance(target, ClassTarget):
        raise InputError(f"contributions add up to the logit of a class; a {type(target).__name__} has none")
    return target.labels


@dataclass(frozen=True)
class ContributionMap(Method):
    """What each place adds to the logit through all clusters together; with the bias, the map adds up to the logit."""

    stage: int | None = None

    order = 5  # before all others: it is exact about what the classifier reads, and costs one pass
    summary = (
        "What each place adds to the logit through the clusters that the classifier reads; exact, of the last map."
    )
    needs = Needs(passes=1, readout=True)

    @property
    def name(self) -> str:
        return "contributions" if self.stage is None else f"contributions stage {self.stage}"

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        found = contributions(model, images, cluster_layer(model, self.stage))
        return found.maps(class_of(target)).sum(1)


METHODS = (ContributionMap(),)
