"""Which clusters carried the decision: PaCa's maps ranked by masking (arXiv 2203.11987, interpretability section).

For every cluster m of a layer: stretch its map to [0, 1], multiply the picture by one minus it (what the cluster looks
at is hidden), and see how much probability the class loses. The paper leaves open whether pixels or normalised values
are masked, how maps are enlarged, what counts as a tie and what to do with heads: those are the fields of `Masking`
and the arguments of `stage_maps`.

Shapes: B batch, M clusters, H W grid of the layer, K classes, h heads; the picture is (3, height, width).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.fill import baseline, blend
from vitreous.attribution.frame import of_picture
from vitreous.attribution.method import trunk
from vitreous.errors import InputError
from vitreous.layers.tap import record, tap_names

Source = Literal["clusters", "attention"]
MaskSpace = Literal["pixels", "normalised"]
MaskFill = Literal["constant", "blur"]
Interpolation = Literal["bilinear", "bicubic", "nearest"]

CLUSTER_TAP = re.compile(r"stages\.(\d+)\.clusters(?:\.(\d+))?")
ATTENTION_TAP = re.compile(r"stages\.(\d+)\.blocks\.(\d+)\.attention\.map")


@dataclass(frozen=True)
class Masking:
    """The choices the paper leaves open."""

    space: MaskSpace = "normalised"  # hide with the data's mean colour; "pixels" hides with black
    fill: MaskFill = field(default="constant", kw_only=True)  # "blur" hides with a blurred copy, in either space
    interpolation: Interpolation = "bilinear"  # from the layer's grid to the picture
    tie_tolerance: float = 1e-3  # differences of probability below this are decided by entropy
    batch_size: int = 64  # masked pictures per forward pass; no effect on the result


class Ranking(NamedTuple):
    maps: Tensor  # (M, H, W), each sums to one
    importance: Tensor  # (M,) probability the target loses when the cluster's area is hidden
    entropy: Tensor  # (M,) nats; small = concentrated
    order: Tensor  # (M,) cluster numbers, most important first
    target: int  # the class whose probability was watched
    probabilities: Tensor  # (K,) of the unmasked picture


def rank_clusters(
    model: nn.Module,
    picture: Tensor,
    maps: Tensor,
    *,
    normalise: Callable[[Tensor], Tensor],
    target: int | None = None,
    masking: Masking | None = None,
) -> Ranking:
    """Importance, entropy and order of the maps of one picture.

    Args:
        model: Classifier in eval mode.
        picture: (3, height, width) with values in [0, 1], as the model sees it before normalisation.
        maps: (M, H, W), non-negative; rescaled to sum to one.
        normalise: Applies the model's mean and standard deviation; must accept (B, 3, height, width).
        target: Class to watch; the predicted one if absent.
        masking: The choices the paper leaves open.
    """
    masking = masking or Masking()
    maps = as_distributions(maps.float())
    probabilities = class_probabilities(model, normalise(picture[None]))[0]
    watched = int(probabilities.argmax()) if target is None else target
    importance = torch.cat(
        [
            probabilities[watched]
            - class_probabilities(model, masked_inputs(picture, chunk, normalise, masking))[:, watched]
            for chunk in maps.split(masking.batch_size)
        ]
    )
    spread = entropy(maps)
    order = rank(importance, spread, masking.tie_tolerance)
    return Ranking(maps, importance, spread, order, watched, probabilities)


def class_probabilities(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.inference_mode():
        return model(inputs).float().softmax(-1)  # (B, K)


def masked_inputs(picture: Tensor, maps: Tensor, normalise: Callable[[Tensor], Tensor], masking: Masking) -> Tensor:
    """One network input per map, with the area of that map hidden."""
    keep = keep_masks(maps, (picture.shape[-2], picture.shape[-1]), masking.interpolation)  # (M, 1, height, width)
    seen = normalise(picture[None])
    plain = normalise(torch.zeros_like(picture[None])) if masking.space == "pixels" else torch.zeros_like(seen)
    return blend(seen, keep, baseline(seen, "blur" if masking.fill == "blur" else plain))


def keep_masks(maps: Tensor, size: tuple[int, int], interpolation: Interpolation = "bilinear") -> Tensor:
    """One minus each stretched map, enlarged to the picture: (M, 1, height, width)."""
    keep = (1 - stretch(maps))[:, None]
    smooth = {} if interpolation == "nearest" else {"align_corners": False}
    return F.interpolate(keep, size=size, mode=interpolation, **smooth).clamp(0, 1)  # bicubic may overshoot


def stretch(maps: Tensor) -> Tensor:
    """Each map scaled to [0, 1]. A flat map points nowhere: it becomes zero and hides nothing."""
    low, high = maps.amin((-2, -1), keepdim=True), maps.amax((-2, -1), keepdim=True)
    return torch.where(high > low, (maps - low) / (high - low).clamp_min(torch.finfo(maps.dtype).tiny), 0.0)


def as_distributions(maps: Tensor) -> Tensor:
    """Each map divided by its sum. Cluster maps already sum to one; columns of attention do not."""
    return maps / maps.sum((-2, -1), keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)


def entropy(maps: Tensor) -> Tensor:
    """-sum Z log Z over positions, in nats, with 0 log 0 = 0: (M,)."""
    return torch.special.entr(maps).sum((-2, -1))


def likeness(maps: Tensor) -> float:
    """Mean correlation between different maps of a picture: 1 if all are copies of one, 0 if they are unrelated."""
    count = len(maps)
    if count < 2:
        return 1.0
    flat = maps.flatten(1)
    unit = F.normalize(flat - flat.mean(1, keepdim=True), dim=1)  # a flat map becomes zero: like no other
    together = unit @ unit.T
    return ((together.sum() - together.trace()) / (count * (count - 1))).item()


def rank(importance: Tensor, entropy: Tensor, tie_tolerance: float) -> Tensor:
    """Cluster numbers by falling importance; within a tie the more concentrated map comes first.

    "Nearly equal" is not transitive, so ties are groups: each reaches from its best score down to that score minus the
    tolerance. What is still equal keeps the order of the cluster numbers.
    """
    scores, spread = importance.tolist(), entropy.tolist()
    order: list[int] = []
    group: list[int] = []
    for cluster in sorted(range(len(scores)), key=lambda m: -scores[m]):
        if group and scores[group[0]] - scores[cluster] > tie_tolerance:
            order += sorted(group, key=lambda m: (spread[m], m))
            group = []
        group.append(cluster)
    return torch.tensor(order + sorted(group, key=lambda m: (spread[m], m)), dtype=torch.long)


class Layer(NamedTuple):
    """Where maps come from. Stages and blocks count from one, as in the paper; tap names count from zero."""

    stage: int
    block: int | None  # None: the stage shares one clustering
    source: Source
    tap: str


def choose_layer(
    model: nn.Module, *, source: Source = "clusters", stage: int | None = None, block: int | None = None
) -> Layer:
    """The layer to explain: by default the last block with maps in the last stage with clusters."""
    names = tap_names(model)
    clustered = sorted({int(match[1]) + 1 for name in names if (match := CLUSTER_TAP.fullmatch(name))})
    if not clustered:
        has = ", ".join(names) or "no taps at all"
        raise InputError(
            f"this model ({type(model).__name__}) has no clusters to explain; it has {has}. "
            "Use a PaCa model with clusters, for example paca_b0 or paca_tiny"
        )
    stage = clustered[-1] if stage is None else stage
    if stage not in clustered:
        raise InputError(f"stage {stage} has no clusters; stages with clusters: {', '.join(map(str, clustered))}")
    pattern = CLUSTER_TAP if source == "clusters" else ATTENTION_TAP
    found = [match for name in names if (match := pattern.fullmatch(name)) and int(match[1]) + 1 == stage]
    layers = {None if match[2] is None else int(match[2]) + 1: match[0] for match in found}
    chosen = list(layers)[-1] if block is None else block
    if chosen not in layers:
        known = ", ".join(str(b) for b in layers if b is not None) or "none: the stage shares one clustering"
        raise InputError(f"block {block} of stage {stage} has no {source} maps of its own; blocks that have: {known}")
    return Layer(stage, chosen, source, layers[chosen])


def layer_maps(model: nn.Module, inputs: Tensor, layer: Layer, head: int | None = None) -> Tensor:
    """The layer's maps of normalised inputs, (B, M, H, W); attention is that of one head or the mean of all.

    A detector blanks its padding, so that the whole model runs, not its backbone alone.
    """
    with torch.inference_mode(), record(trunk(model), layer.tap) as recorded:
        model(inputs)
    maps = recorded[layer.tap].float()
    if layer.source == "attention":  # (B, h, M, H, W)
        heads = maps.shape[1]
        if head is not None and not 1 <= head <= heads:
            raise InputError(f"head {head} does not exist; stage {layer.stage} has heads 1 to {heads}")
        maps = maps.mean(1) if head is None else maps[:, head - 1]
    return of_picture(maps, model)
