"""Two checks of a map that need no ground truth.

randomisation   Adebayo et al., arXiv 1810.03292: the map of a network with shuffled weights must look different. A
                method that passes over the weights draws the image, not the decision. Near 0 is good, near 1 is bad.
stability       the map of the image with a little noise must look the same. Near 1 is good.

Both are Spearman correlations of the positions of two maps.
"""

import torch
from torch import Tensor, nn

from vitreous.attribution.controls import shuffled
from vitreous.attribution.method import Method, resolve
from vitreous.attribution.target import Target
from vitreous.clusters.ranks import rank_correlation

NOISE = 0.1  # standard deviation in normalised units; about 6 of 255 for the usual normalisation


def map_similarity(a: Tensor, b: Tensor) -> Tensor:
    """Spearman correlation of maps (B, H, W) over positions: (B,)."""
    return rank_correlation(a.flatten(1), b.flatten(1))


def randomisation(
    method: Method, model: nn.Module, images: Tensor, target: Target, heat: Tensor | None = None
) -> Tensor:
    """Likeness of the maps of the model and of its shuffled copy, (B,)."""
    heat = method(model, images, target) if heat is None else heat
    return map_similarity(heat, method(shuffled(model), images, target)).abs()


def stability(
    method: Method,
    model: nn.Module,
    images: Tensor,
    target: Target | None = None,
    heat: Tensor | None = None,
    *,
    noise: float = NOISE,
    draws: int = 2,
) -> Tensor:
    """Mean likeness of the map and those of noisy copies, for the same target: (B,)."""
    target = resolve(model, images, target)
    heat = method(model, images, target) if heat is None else heat
    random = torch.Generator().manual_seed(0)
    total = torch.zeros(len(images), device=images.device)
    for _ in range(draws):
        noisy = images + noise * torch.randn(images.shape[1:], generator=random).to(images)
        total += map_similarity(heat, method(model, noisy, target)) / draws
    return total
