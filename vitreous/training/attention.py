"""Training where a decision looks: the share of it that lies off the object, or in a region, becomes a loss term.

Three ways to say where a decision looks:

readout    A PaCa whose classifier reads clusters: sum over m of a_m Z_mn is the share of position n in what is read.
           The term is their sum over positions that no part of the object touches, or that a region does.
clusters   Any other PaCa with clusters: their maps, each weighted by the slope of the loss at a factor on what is read
           from the cluster; of all attentions to clusters together, as a share. The weights are given, not learned, so
           that one more backward pass through activations is all it takes: fused attention, recomputed blocks and
           several processes have it. What positions see without clusters does not show.
gradient   Any other classifier: the share that lies there in the squared gradient of the loss with respect to the
           image. Ross, Hughes, Doshi-Velez: "Right for the Right Reasons", arXiv 1703.03717, penalise the squares
           themselves; as a share, one weight fits any model. It takes a gradient of a gradient, which fused attention,
           compiled steps and several processes do not have.

The mean is over the images that have a guide; where a batch has none, the term is 0.

Shapes: B images, H W their sides or a grid.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitreous.data.guides import AWAY, OBJECT
from vitreous.errors import InputError
from vitreous.layers.readout import ReadoutAttention
from vitreous.models.paca import ClusterAttention, ClusterStage

TERM = "attend"  # its name in metrics.jsonl
SLOPE_SCALE = 1024.0  # half precision would lose small slopes; as shares are taken of them, it cancels


class AttentionLoss:
    """The term of a run's loss; none if the settings ask for none."""

    def __init__(self, model: nn.Module, settings: Any, processes: int = 1) -> None:
        guided = settings.attend_to or settings.attend_away
        self.weights = {TERM: settings.attend_weight} if guided and settings.attend_weight else {}
        self.readouts: list[ReadoutAttention] = []
        self.attentions: list[ClusterAttention] = []  # to clusters
        if not self.weights:
            return
        self.readouts = [module for module in model.modules() if isinstance(module, ReadoutAttention)]
        for readout in self.readouts:
            readout.note_places = True
        if self.readouts:
            return
        stages = [module for module in model.modules() if isinstance(module, ClusterStage) and module.clustered]
        self.attentions = [block.attention for stage in stages for block in stage.blocks]  # type: ignore[misc]
        lacking = {"--compile": settings.compile}
        if self.attentions:
            lacking["--shard"] = settings.shard
        else:
            lacking["several processes"] = processes > 1
            lacking["--grad-checkpointing"] = settings.grad_checkpointing != "off"
        for what, given in lacking.items():
            if given:
                how = "the slopes of its clusters" if self.attentions else "a gradient of its gradient"
                raise InputError(
                    f"model '{settings.model}' learns where to look by {how}, which {what} cannot "
                    "give; leave one of the two out, or train a model that reads clusters, for example paca_b0_readout"
                )

    @property
    def by_gradient(self) -> bool:
        return bool(self.weights) and not self.readouts and not self.attentions

    def watched(self, images: Tensor) -> Tensor:
        """The images, with what it takes to differentiate with respect to them; the model notes what it must."""
        for attention in self.attentions:
            attention.note_clusters = True
        return images.requires_grad_() if self.by_gradient else images

    def differentiable(self) -> AbstractContextManager[Any]:
        """Kernels whose gradient has one: no fused attention has."""
        return sdpa_kernel(SDPBackend.MATH) if self.by_gradient else nullcontext()

    def take(self, images: Tensor, targets: dict[str, Any], losses: dict[str, Tensor]) -> dict[str, Tensor]:
        """The unweighted term of the latest forward pass; what the model kept for it is removed."""
        if not self.weights:
            return {}
        allowed, away = targets[OBJECT], targets[AWAY]
        if self.readouts:
            shares = []
            for readout in self.readouts:
                assert readout.places is not None, "no forward pass in training mode came before"
                shares.append(share_elsewhere(readout.places.float(), allowed, away))
                readout.places = None
            elsewhere = torch.stack(shares).mean(0)
        elif self.attentions:
            elsewhere = self.of_clusters(losses, allowed, away)
        else:
            (slope,) = torch.autograd.grad(torch.stack(list(losses.values())).sum(), images, create_graph=True)
            strength = slope.float().square().sum(1)  # (B, H, W)
            total = strength.sum((1, 2), keepdim=True)
            elsewhere = share_elsewhere(strength / total.clamp_min(torch.finfo(total.dtype).tiny), allowed, away)
        guided = (~allowed | away).flatten(1).any(1)
        return {TERM: (elsewhere * guided).sum() / guided.sum().clamp_min(1)}

    def of_clusters(self, losses: dict[str, Tensor], allowed: Tensor, away: Tensor) -> Tensor:
        """(B,): the share of all maps off the object, each cluster of each attention weighted by its importance."""
        noted = []
        for attention in self.attentions:
            assert attention.noted is not None, "no forward pass came before"
            noted.append(attention.noted)
            attention.noted, attention.note_clusters = None, False  # blocks that run again must not note it again
        values = [values for _, values in noted]
        loss = torch.stack(list(losses.values())).sum()
        slopes = torch.autograd.grad(loss * SLOPE_SCALE, values, retain_graph=True)
        importance = [gate_slopes(*pair) for pair in zip(values, slopes, strict=True)]
        total = torch.stack([each.sum(1) for each in importance]).sum(0)[:, None]  # (B, 1)
        elsewhere = torch.zeros_like(total[:, 0])
        for (assignment, _), each in zip(noted, importance, strict=True):
            shares = each / total.clamp_min(torch.finfo(total.dtype).tiny)  # (B, M); over all attentions they sum to 1
            places = (shares[..., None, None] * assignment.float()).sum(1)
            elsewhere = elsewhere + share_elsewhere(places, allowed, away)
        return elsewhere


def gate_slopes(values: Tensor, slopes: Tensor) -> Tensor:
    """(B, M): how steeply the loss changes with a factor on what is read from each cluster; values are (B, h, M, d)."""
    return (values.detach().float() * slopes.float()).sum((1, 3)).abs()


def share_elsewhere(places: Tensor, allowed: Tensor, away: Tensor) -> Tensor:
    """(B,): the sum of places (B, H, W) that the object does not touch, or that a region does; masks are in pixels."""
    grid = places.shape[1:]
    touched, hit = (F.adaptive_max_pool2d(mask[:, None].float(), grid)[:, 0] for mask in (allowed, away))
    return (places * torch.maximum(1 - touched, hit)).sum((1, 2))
