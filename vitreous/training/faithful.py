"""Training a classifier that reads clusters so that its contributions are true about pixels, as a loss term.

What each place adds to a logit is exact about the last map (`clusters.contributions`), and says little about pixels,
as every place has seen its surroundings. The term asks for both: what the contributions to the true class put first is
to keep the class when it alone is shown, and to take it away when it alone is hidden. It is the loss with which
explainers are taught, and teaches the model where to read instead: the pictures with hidden parts run through frozen
weights, so that nothing is learned from them but the map. A step takes about three times as long.

Shapes: B images, H W grid, C channels of a stage, K classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.attribution.gradient import without_weight_gradients
from vitreous.attribution.marking import marking_loss
from vitreous.attribution.method import to_image
from vitreous.errors import InputError
from vitreous.layers.readout import ReadoutAttention

FAITHFUL = "cluster_faithful"  # the setting, and the term's name in metrics.jsonl


class FaithfulLoss:
    """The term of a run's loss; none if the settings ask for none."""

    def __init__(self, model: nn.Module, settings: Any) -> None:
        self.weights = {FAITHFUL: settings.cluster_faithful} if settings.cluster_faithful else {}
        self.model: Any = model
        self.readouts: list[ReadoutAttention] = []
        if not self.weights:
            return
        given = f"{FAITHFUL} {settings.cluster_faithful}"
        self.readouts = [module for module in model.modules() if isinstance(module, ReadoutAttention)]
        if not self.readouts:
            raise InputError(
                f"the classifier of model '{settings.model}' does not read clusters, but {given} is about what they "
                "contribute; leave it out, or train a PaCa with --model-args readout=clusters"
            )
        lacking = {"--compile": settings.compile, "--shard": settings.shard}
        lacking["--grad-checkpointing"] = settings.grad_checkpointing != "off"  # blocks would run again when not frozen
        for what, used in lacking.items():
            if used:
                raise InputError(
                    f"{given} runs the model a second time with frozen weights, which {what} cannot do; leave one of "
                    "the two out"
                )
        for readout in self.readouts:
            readout.note_read = True

    def take(self, images: Tensor, targets: dict[str, Any]) -> dict[str, Tensor]:
        """The unweighted term of the latest forward pass; what the model kept for it is removed."""
        if not self.weights:
            return {}
        labels = targets["labels"] if targets["labels"].ndim == 1 else targets["labels"].argmax(1)  # of mixed images
        heat, size, first = torch.zeros(()), (images.shape[2], images.shape[3]), 0
        for readout in self.readouts:
            assert readout.read is not None, "no forward pass in training mode came before"
            places, x = readout.read
            rows = self.model.head.weight[labels, first : first + x.shape[-1]]  # (B, C): what a class is to this stage
            evidence = torch.einsum("bhwc,bc->bhw", x.float(), rows.float())
            heat, first = heat.to(x.device) + to_image(places * evidence, size), first + x.shape[-1]
            readout.read = None
        random = torch.Generator().manual_seed(int(torch.randint(2**31, ())))  # the run's own random numbers
        with frozen(self.model):
            return {FAITHFUL: marking_loss(self.model, images, heat, labels, random)}


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """In eval mode, and without gradients for the weights; afterwards as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with without_weight_gradients(model):
            yield
    finally:
        for module in training:
            module.training = True
