"""The token gradient of PaCa: what each position adds to the decision through the clusters, to first order.

Shapes: B images, C channels, H W grid, M clusters.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.method import Method, Needs
from vitreous.attribution.target import Target
from vitreous.clusters.gates import attentions, cluster_layer


@dataclass(frozen=True)
class TokenGradient(Method):
    """sum over clusters m of relu(Z_mn <x_n, dy / d(ZX)_m>), over all blocks that use the clusters of a stage.

    The cluster token (ZX)_m is the sum over positions of Z_mn x_n, so each term is what position n adds to the target
    through cluster m, to first order; one pass and back gives all.
    """

    stage: int | None = None

    order = 40
    summary = "What each position adds to the target through the clusters, to first order."
    needs = Needs(passes=3, gradient=True, clusters=True)

    @property
    def name(self) -> str:
        return "token_gradient" if self.stage is None else f"token_gradient stage {self.stage}"

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        layer = cluster_layer(model, self.stage)
        with torch.enable_grad(), gathered(list(attentions(model, layer).values())) as seen:
            score = target(model(images.detach().requires_grad_()))
            slopes = torch.autograd.grad(score.sum(), [item["tokens"] for item in seen])
        total = torch.zeros((), device=images.device)
        for item, slope in zip(seen, slopes, strict=True):
            x, z = item["patches"].detach(), item["assignment"].detach()  # (B, H, W, C), (B, M, H, W)
            total = total + F.relu(z * torch.einsum("bhwc,bmc->bmhw", x, slope)).sum(1)
        return total


@contextmanager
def gathered(modules: list[Any]) -> Iterator[list[dict[str, Tensor]]]:
    """What enters each cluster attention, and the cluster tokens ZX before their norm."""
    seen: list[dict[str, Tensor]] = [{} for _ in modules]
    with ExitStack() as cleanup:
        for module, item in zip(modules, seen, strict=True):

            def enter(_module: nn.Module, inputs: tuple[Tensor, Tensor], item: dict = item) -> None:
                item["patches"], item["assignment"] = inputs

            def tokens(_module: nn.Module, inputs: tuple[Tensor], item: dict = item) -> None:
                item["tokens"] = inputs[0]

            cleanup.callback(module.register_forward_pre_hook(enter).remove)
            cleanup.callback(module.cluster_norm.register_forward_pre_hook(tokens).remove)
        yield seen


METHODS = (TokenGradient(),)
