"""Learning from a teacher: the terms that DeiT and XCiT add to the loss on labels, for a model with one head."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.data.transforms import Preprocess


@dataclass(frozen=True)
class Teacher:
    """A trained classifier that is shown the pupil's own batches, mixed and augmented as they are."""

    model: nn.Module
    preprocess: Preprocess  # what it expects
    shown: Preprocess  # what the pupil's images went through
    columns: tuple[int, ...]  # where each class of the pupil is in the teacher's output
    resized: bool = False  # whether it takes images of its own size only

    def __post_init__(self) -> None:
        self.model.eval().requires_grad_(False)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """(B, K) logits in the order of the pupil's classes."""
        return self.model(self.translate(images)).float()[:, list(self.columns)]

    def translate(self, images: Tensor) -> Tensor:
        """Images as the teacher's own preprocessing would have left them."""
        theirs, ours = self.preprocess, self.shown
        if (theirs.mean, theirs.std) != (ours.mean, ours.std):
            images = theirs.normalise(ours.denormalise(images))
        if self.resized:
            images = F.interpolate(images, theirs.size, mode="bilinear", antialias=True)
        return images


@dataclass(frozen=True)
class Distillation:
    """How much of the loss a teacher has, and what is taken from it."""

    teacher: Teacher
    kind: Literal["hard", "soft"] = "hard"
    weight: float = 0.5
    temperature: float = 1.0  # of soft distillation

    def loss(self, logits: Tensor, images: Tensor) -> Tensor:
        """Mean over the images. The square of the temperature keeps the size of the gradient (Hinton et al. 2015)."""
        taught = self.teacher(images)
        if self.kind == "hard":
            return F.cross_entropy(logits, taught.argmax(1))
        warm = self.temperature
        told, said = (taught / warm).log_softmax(1), (logits / warm).log_softmax(1)
        return F.kl_div(said, told, reduction="batchmean", log_target=True) * warm**2
