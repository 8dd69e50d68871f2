"""Training where a decision looks: the share of it that lies off the object, or in a region, becomes a loss term.

Two ways to say where a decision looks:

readout    A PaCa whose classifier reads clusters: sum over m of a_m Z_mn is the share of position n in what is read.
           The term is their sum over positions that no part of the object touches, or that a region does.
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

TERM = "attend"  # its name in metrics.jsonl


class AttentionLoss:
    """The term of a run's loss; none if the settings ask for none."""

    def __init__(self, model: nn.Module, settings: Any, processes: int = 1) -> None:
        guided = settings.attend_to or settings.attend_away
        self.weights = {TERM: settings.attend_weight} if guided and settings.attend_weight else {}
        self.readouts: list[ReadoutAttention] = []
        if not self.weights:
            return
        self.readouts = [module for module in model.modules() if isinstance(module, ReadoutAttention)]
        for readout in self.readouts:
            readout.note_places = True
        if self.readouts:
            return
        found = {"--compile": settings.compile, "several processes": processes > 1}
        found["--grad-checkpointing"] = settings.grad_checkpointing != "off"
        for what, given in found.items():
            if given:
                raise InputError(
                    f"model '{settings.model}' learns where to look by a gradient of its gradient, which {what} cannot "
                    "give; leave one of the two out, or train a model that reads clusters, for example paca_b0_readout"
                )

    @property
    def by_gradient(self) -> bool:
        return bool(self.weights) and not self.readouts

    def watched(self, images: Tensor) -> Tensor:
        """The images, with what it takes to differentiate with respect to them."""
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
        else:
            (slope,) = torch.autograd.grad(torch.stack(list(losses.values())).sum(), images, create_graph=True)
            strength = slope.float().square().sum(1)  # (B, H, W)
            total = strength.sum((1, 2), keepdim=True)
            elsewhere = share_elsewhere(strength / total.clamp_min(torch.finfo(total.dtype).tiny), allowed, away)
        guided = (~allowed | away).flatten(1).any(1)
        return {TERM: (elsewhere * guided).sum() / guided.sum().clamp_min(1)}


def share_elsewhere(places: Tensor, allowed: Tensor, away: Tensor) -> Tensor:
    """(B,): the sum of places (B, H, W) that the object does not touch, or that a region does; masks are in pixels."""
    grid = places.shape[1:]
    touched, hit = (F.adaptive_max_pool2d(mask[:, None].float(), grid)[:, 0] for mask in (allowed, away))
    return (places * torch.maximum(1 - touched, hit)).sum((1, 2))
