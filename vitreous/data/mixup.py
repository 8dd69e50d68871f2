"""Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019) on a batch of images with class labels.

Same defaults and distribution as timm's `Mixup` in batch mode, but the randomness is an argument, which makes a
batch a function of its key, and batches of odd length are legal.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.transforms import require_probability
from vitreous.errors import InputError


class Mixed(NamedTuple):
    images: Tensor
    labels: Tensor  # (B, K), rows sum to one


@dataclass(frozen=True)
class Mixup:
    """Blend every image of a batch with its mirror in the batch, by transparency or by a pasted rectangle."""

    mixup: float = 0.0  # alpha of the Beta distribution; 0 = off
    cutmix: float = 0.0
    switch: float = 0.5  # how often CutMix is chosen when both are on

    def __post_init__(self) -> None:
        if self.mixup < 0 or self.cutmix < 0:
            raise InputError(f"mixup {self.mixup} and cutmix {self.cutmix} must be 0 (off) or more")
        require_probability("mixup switch", self.switch)

    @property
    def active(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0

    def __call__(self, images: Tensor, labels: Tensor, classes: int, rng: np.random.Generator) -> Mixed:
        soft = F.one_hot(labels, classes).to(images.dtype)  # (B, K)
        cut = self.cutmix > 0 and (self.mixup == 0 or rng.random() < self.switch)
        alpha = self.cutmix if cut else self.mixup
        share = float(rng.beta(alpha, alpha))
        if cut:
            images, share = _paste(images, share, rng)
        else:
            images = torch.lerp(images.flip(0), images, share)
        return Mixed(images, torch.lerp(soft.flip(0), soft, share))


def _paste(images: Tensor, share: float, rng: np.random.Generator) -> tuple[Tensor, float]:
    """Replace a rectangle that covers about `1 - share`; returns the share that is really left."""
    height, width = images.shape[-2:]
    side = float(np.sqrt(1 - share))
    half_height, half_width = int(height * side) // 2, int(width * side) // 2
    row, column = int(rng.integers(height)), int(rng.integers(width))
    top, bottom = max(row - half_height, 0), min(row + half_height, height)
    left, right = max(column - half_width, 0), min(column + half_width, width)
    pasted = images.clone()
    pasted[..., top:bottom, left:right] = images.flip(0)[..., top:bottom, left:right]
    return pasted, 1 - (bottom - top) * (right - left) / (height * width)
