"""Maps from hiding parts of the image and asking the model again: occlusion and RISE. No gradient, no look inside.

Shapes: B images, S changed copies of each, height and width of the image.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.fill import Fill, baseline, blend
from vitreous.attribution.method import Method, Needs, rows_at_once
from vitreous.attribution.target import Target

COPIES_AT_ONCE = 32  # changed copies run together


def scores_of_masked(
    model: nn.Module, images: Tensor, keep: Tensor, hidden: Tensor, target: Target, *, batch_size: int = COPIES_AT_ONCE
) -> Tensor:
    """The target of every image under every mask (S, 1, height, width): (B, S)."""
    rows = []
    for b in range(len(images)):
        for part in keep.split(rows_at_once(images, batch_size)):
            rows.append(target.select(torch.full((len(part),), b))(model(blend(images[b], part, hidden[b]))))
    return torch.cat(rows).view(len(images), len(keep))


@dataclass(frozen=True)
class Occlusion(Method):
    """Zeiler, Fergus, arXiv 1311.2901: windows of two by two cells slide by one; a cell is the mean of its four.

    The value is what the target loses, so it is signed.
    """

    cells: int = 8
    fill: Fill = "blur"

    order = 20
    name = "occlusion"
    summary = "What the target loses when a small window is hidden there."

    @property
    def needs(self) -> Needs:
        return Needs(passes=(self.cells + 1) ** 2)

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        places = self.cells + 1
        covered = F.max_pool2d(torch.eye(places**2).view(-1, 1, places, places), 2, 1)  # (S, 1, cells, cells)
        keep = F.interpolate(1 - covered.to(images), images.shape[2:], mode="nearest")
        scores = scores_of_masked(model, images, keep, baseline(images, self.fill), target)
        lost = (target(model(images))[:, None] - scores).view(-1, 1, places, places)
        return F.avg_pool2d(lost, 2, 1)[:, 0]


@dataclass(frozen=True)
class Rise(Method):
    """Petsiuk et al., arXiv 1806.07421: random masks weighted by the probability left, as a covariance.

    The covariance is the original's mean of weighted masks without its constant part, and needs fewer masks. The
    original hides with one colour. Here a blur does: half of a picture full of holes looks like nothing a network
    knows (insertion − deletion of a small PaCa on 20 shapes: 0.37 with the mean colour, 0.68 with the blur).
    """

    masks: int = 256
    cells: int = 7
    keep: float = 0.5
    fill: Fill = "blur"
    seed: int = 0

    order = 20
    name = "rise"
    summary = "How much more probable the target is when the place is visible, over random masks."

    @property
    def needs(self) -> Needs:
        return Needs(passes=self.masks)

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        keep = self.draw((images.shape[2], images.shape[3])).to(images)
        scores = scores_of_masked(model, images, keep, baseline(images, self.fill), target.on("probability"))
        centred = scores - scores.mean(1, keepdim=True)
        return torch.einsum("bs,shw->bhw", centred, keep[:, 0] - keep[:, 0].mean(0)) / self.masks

    def draw(self, size: tuple[int, int]) -> Tensor:
        """Smooth random masks (S, 1, height, width), each shifted by a part of a cell."""
        random = torch.Generator().manual_seed(self.seed)
        step = [-(-side // self.cells) for side in size]
        large = [(self.cells + 1) * side for side in step]
        coarse = (torch.rand(self.masks, 1, self.cells + 1, self.cells + 1, generator=random) < self.keep).float()
        fine = F.interpolate(coarse, large, mode="bilinear", align_corners=False)
        shifts = [torch.randint(side, (self.masks,), generator=random).tolist() for side in step]
        cut = [fine[s, :, y : y + size[0], x : x + size[1]] for s, (y, x) in enumerate(zip(*shifts, strict=True))]
        return torch.stack(cut)


METHODS = (Occlusion(), Rise())
