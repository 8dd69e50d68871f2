"""Where cluster maps come from: the choice of a layer, its maps, and what the maps alone show.

Shapes: B batch, M clusters, H W grid of the layer, h heads.
"""

import re
from collections.abc import Container, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.frame import of_picture
from vitreous.attribution.method import trunk
from vitreous.errors import InputError
from vitreous.layers.tap import record, tap_names

MapSource = Literal["clusters", "attention"]

CLUSTER_TAP = re.compile(r"stages\.(\d+)\.clusters(?:\.(\d+))?")
READOUT_TAP = re.compile(r"readout\.(\d+)\.clusters")
ATTENTION_TAP = re.compile(r"stages\.(\d+)\.blocks\.(\d+)\.attention\.map")


class Layer(NamedTuple):
    """Where maps come from. Stages and blocks count from one, as in the paper; tap names count from zero.

    A readout through clusters counts as a stage after the last: its clusters are what the classifier reads.
    """

    stage: int
    block: int | None  # None: the stage shares one clustering
    source: MapSource
    tap: str

    @property
    def is_readout(self) -> bool:
        return READOUT_TAP.fullmatch(self.tap) is not None

    @property
    def name(self) -> str:
        """For the reader."""
        if (match := READOUT_TAP.fullmatch(self.tap)) is not None:
            return f"readout of stage {int(match[1]) + 1}"
        return f"stage {self.stage}" + (f", block {self.block}" if self.block else "")


def choose_layer(
    model: nn.Module, *, source: MapSource = "clusters", stage: int | None = None, block: int | None = None
) -> Layer:
    """The layer to explain: by default what the classifier reads, else the last block of the last stage with clusters.

    A readout counts as a stage after the last one.
    """
    names = tap_names(model)
    clustered = sorted({int(match[1]) + 1 for name in names if (match := CLUSTER_TAP.fullmatch(name))})
    read = [name for name in names if READOUT_TAP.fullmatch(name)]
    read_as = dict(enumerate(read if source == "clusters" else [], len(getattr(model, "stages", [])) + 1))
    if not clustered and not read_as:
        has = ", ".join(names) or "no taps at all"
        raise InputError(
            f"this model ({type(model).__name__}) has no clusters to explain; it has {has}. "
            "Use a PaCa model with clusters, for example paca_b0 or paca_tiny"
        )
    numbers = [*clustered, *read_as]
    stage = numbers[-1] if stage is None else stage
    if stage not in numbers:
        raise InputError(f"stage {stage} has no clusters; stages with clusters: {listed_layers(numbers, read_as)}")
    if stage in read_as:
        if block is not None:
            raise InputError(f"block {block} of stage {stage} was asked for; that is the readout, which has no blocks")
        return Layer(stage, None, source, read_as[stage])
    pattern = CLUSTER_TAP if source == "clusters" else ATTENTION_TAP
    found = [match for name in names if (match := pattern.fullmatch(name)) and int(match[1]) + 1 == stage]
    layers = {None if match[2] is None else int(match[2]) + 1: match[0] for match in found}
    chosen = list(layers)[-1] if block is None else block
    if chosen not in layers:
        known = ", ".join(str(b) for b in layers if b is not None) or "none: the stage shares one clustering"
        raise InputError(f"block {block} of stage {stage} has no {source} maps of its own; blocks that have: {known}")
    return Layer(stage, chosen, source, layers[chosen])


def listed_layers(numbers: Sequence[int], readouts: Container[int]) -> str:
    return ", ".join(f"{number} (the readout)" if number in readouts else str(number) for number in numbers)


def layer_maps(model: nn.Module, inputs: Tensor, layer: Layer, head: int | None = None) -> Tensor:
    """The layer's maps of normalised inputs, (B, M, H, W); attention is that of one head or the mean of all.

    A detector blanks its padding, so the whole model runs, not its backbone alone.
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


def stretch(maps: Tensor) -> Tensor:
    """Each map scaled to [0, 1]. A flat map points nowhere: it becomes zero and hides nothing."""
    low, high = maps.amin((-2, -1), keepdim=True), maps.amax((-2, -1), keepdim=True)
    return torch.where(high > low, (maps - low) / (high - low).clamp_min(torch.finfo(maps.dtype).tiny), 0.0)


def as_distributions(maps: Tensor) -> Tensor:
    """Each map divided by its sum. Cluster maps already sum to one; columns of attention do not."""
    return maps / maps.sum((-2, -1), keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)


def spatial_entropy(maps: Tensor) -> Tensor:
    """-sum Z log Z over positions, in nats, with 0 log 0 = 0: (M,)."""
    return torch.special.entr(maps).sum((-2, -1))


def map_correlation(maps: Tensor) -> Tensor:
    """Between the maps (M, H, W) of one image: (M, M). A flat map is like no other."""
    flat = maps.float().flatten(1)
    unit = F.normalize(flat - flat.mean(1, keepdim=True), dim=1)
    return unit @ unit.T


def mean_correlation(maps: Tensor) -> float:
    """Between different maps (M, H, W) of one image: 1 if all are copies of one, 0 if they are unrelated."""
    count = len(maps)
    if count < 2:
        return 1.0
    together = map_correlation(maps)
    return ((together.sum() - together.trace()) / (count * (count - 1))).item()
