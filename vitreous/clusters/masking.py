"""The paper's ranking of clusters: hide what a cluster looks at (arXiv 2203.11987, interpretability section).

For every cluster: stretch its map to [0, 1], multiply the picture by one minus it, and see how much probability the
class loses. The paper leaves open whether pixels or normalised values are masked, how maps are enlarged and what counts
as a tie: those are the fields of `Masking`.

    vitreous.explain(model, "photo.jpg", ranking=Masking(space="pixels"))

Shapes: B images, M clusters, H W grid of the layer; height and width of the picture.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.fill import Fill, baseline, blend
from vitreous.attribution.frame import of_picture
from vitreous.attribution.method import rows_at_once
from vitreous.attribution.target import Target
from vitreous.clusters.gates import maps_of
from vitreous.clusters.layer import Layer, stretch
from vitreous.errors import InputError

MaskSpace = Literal["pixels", "normalised"]
MaskFill = Literal["constant", "blur"]
Interpolation = Literal["bilinear", "bicubic", "nearest"]


@dataclass(frozen=True)
class Masking:
    """Settings of the ranking "masking".

    Args:
        space: "pixels" hides with black, "normalised" with the mean colour of the training data.
        fill: "constant" hides with that colour, "blur" with a blurred copy.
        interpolation: How maps are enlarged to the picture: bilinear, bicubic or nearest.
        tie_tolerance: Scores closer than this are ordered by entropy.
        batch_size: Masked pictures per forward pass; no effect on the result.
    """

    space: MaskSpace = "normalised"
    fill: MaskFill = "constant"
    interpolation: Interpolation = "bilinear"
    tie_tolerance: float = 1e-3
    batch_size: int = 16

    def __post_init__(self) -> None:
        if not self.tie_tolerance >= 0:  # NaN is refused too
            raise InputError(f"tie_tolerance={self.tie_tolerance} given; it is a difference of scores, 0 or more")

    @property
    def hole(self) -> str:
        """What hidden places look like, for the reader."""
        return "blurred" if self.fill == "blur" else "black" if self.space == "pixels" else "grey"


def by_masking(
    model: nn.Module,
    images: Tensor,
    target: Target,
    layer: Layer,
    *,
    masking: Masking | None = None,
    black: Tensor | None = None,
    maps: Tensor | None = None,
) -> Tensor:
    """Probability lost when the stretched map of a cluster is hidden: (B, M).

    `black` is black's normalised value, which hides in the space "pixels". `maps` (B, M, H, W) take the place of the
    clusters' own, such as the attention paid to them.
    """
    masking = masking or Masking()
    fill: Fill | Tensor = "blur" if masking.fill == "blur" else "mean"
    if masking.space == "pixels" and masking.fill == "constant":
        if black is None:
            raise InputError('space="pixels" given; to hide with black give its normalised value too')
        fill = black
    target = target.on("probability")
    with torch.no_grad():
        output, own = maps_of(model, images, layer) if maps is None else (model(images), maps)
        own = of_picture(own, model) if maps is None else own
        hidden, (height, width) = baseline(images, fill), images.shape[-2:]
        after = []
        for b, of_image in enumerate(own.float()):
            for part in of_image.split(rows_at_once(images, masking.batch_size)):
                masked = blend(images[b], keep_masks(part, (height, width), masking.interpolation), hidden[b])
                after.append(target.select(torch.full((len(part),), b))(model(masked)))
        return target(output)[:, None] - torch.cat(after).view(own.shape[:2])


def keep_masks(maps: Tensor, size: tuple[int, int], interpolation: Interpolation = "bilinear") -> Tensor:
    """One minus each stretched map, enlarged to the picture: (M, 1, height, width)."""
    keep = (1 - stretch(maps))[:, None]
    smooth = {} if interpolation == "nearest" else {"align_corners": False}
    return F.interpolate(keep, size=size, mode=interpolation, **smooth).clamp(0, 1)  # bicubic may overshoot
