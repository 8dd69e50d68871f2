"""What each segment of an image adds to the target, on average over random sets of other segments that are visible.

Lundberg, Lee, arXiv 1705.07874, fit such values by a weighted regression. Here coalitions come in pairs, each with its
complement (Covert, Lee, arXiv 2012.01536), all sizes are equally frequent, and a ridge takes the place of the weights,
which so few coalitions could not carry.

Shapes: B images, S coalitions, K segments, H W grid, height and width of the image.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.controls import noise_for
from vitreous.attribution.fill import Fill, baseline
from vitreous.attribution.method import Method, Needs
from vitreous.attribution.occlusion import scores_of_masked
from vitreous.attribution.segments import segments
from vitreous.attribution.target import Target
from vitreous.errors import InputError


@dataclass(frozen=True)
class SegmentShapley(Method):
    """Ridge regression of the probability on which segments are visible; signed.

    A segment's heat is its coefficient over the root of its area: as much for less of the image is worth more, and
    a coefficient over the whole area would favour specks.
    """

    pairs: int = 16
    count: int = 16  # segments
    ridge: float = 0.5
    fill: Fill = "blur"

    order = 20
    summary = "What each segment of the image adds to the target, over random sets of visible segments."

    def __post_init__(self) -> None:
        if self.pairs < 1 or self.count < 2:
            raise InputError(f"pairs={self.pairs}, count={self.count} given; 1 pair and 2 segments are the fewest")

    @property
    def name(self) -> str:
        return "segment_shapley" if self.pairs == SegmentShapley.pairs else f"segment_shapley_{self.needs.passes}"

    @property
    def needs(self) -> Needs:
        return Needs(passes=2 * self.pairs + 1)

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        parts, hidden = segments(model, images, self.count), baseline(images, self.fill)  # (B, K, H, W)
        kept = self.coalitions(images, parts.shape[1])  # (B, S, K)
        scores = []
        for b in range(len(images)):
            visible = torch.einsum("sk,khw->shw", kept[b], parts[b])[:, None]
            visible = F.interpolate(visible, images.shape[2:], mode="bilinear", align_corners=False).to(images)
            alone = target.select(torch.tensor([b])).on("probability")
            scores.append(scores_of_masked(model, images[b : b + 1], visible, hidden[b : b + 1], alone)[0])
        worth = ridge_regression(kept, torch.stack(scores).float(), self.ridge)  # (B, K)
        area = parts.sum((2, 3)).clamp_min(1)
        return torch.einsum("bk,bkhw->bhw", worth / area.sqrt(), parts)

    def coalitions(self, images: Tensor, count: int) -> Tensor:
        """Which segments are visible, (B, S, K) of 0 and 1; every other one is the complement of the one before."""
        drawn = noise_for(images, self.pairs, count + 1, seed=1)
        kept = (drawn[..., 1:] < drawn[..., :1]).float()  # each with a share drawn anew
        return torch.stack([kept, 1 - kept], 2).flatten(1, 2)


def ridge_regression(inputs: Tensor, outputs: Tensor, ridge: float) -> Tensor:
    """Coefficients (B, K) of outputs (B, S) on inputs (B, S, K), both centred."""
    inputs, outputs = inputs - inputs.mean(1, keepdim=True), outputs - outputs.mean(1, keepdim=True)
    gram = inputs.transpose(1, 2) @ inputs + ridge * torch.eye(inputs.shape[2]).to(inputs)
    return torch.linalg.solve(gram, (inputs.transpose(1, 2) @ outputs[:, :, None]))[:, :, 0]


METHODS = (SegmentShapley(), SegmentShapley(pairs=24))
