"""Score-CAM: channels of the last map as masks of the image, each weighted by what the model says behind it.

Wang et al., arXiv 1910.01279. The original runs one pass for every channel, thousands in large networks. Here the
channels whose maps vary most over the image stand for all.

Shapes: B images, C channels, H W grid, S chosen channels.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.fill import Fill, baseline
from vitreous.attribution.frame import of_picture
from vitreous.attribution.gradient import where
from vitreous.attribution.method import Method, Needs, to_image
from vitreous.attribution.occlusion import scores_of_masked
from vitreous.attribution.spatial import find_place, watch
from vitreous.attribution.target import Target


@dataclass(frozen=True)
class ScoreCam(Method):
    """`stage` and `layer` as of Grad-CAM; `channels`: at most so many, those that vary most."""

    channels: int = 32
    stage: int | None = None
    layer: str | None = None
    fill: Fill = "mean"

    order = 20
    summary = "Features of a layer, each of the most varied channels weighted by the answer when only it is shown."

    @property
    def name(self) -> str:
        return "score_cam" + where(self.stage, self.layer)

    @property
    def needs(self) -> Needs:
        return Needs(passes=self.channels + 1, spatial=True)

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        place = find_place(model, images, stage=self.stage, layer=self.layer)
        with watch(model, place) as seen:
            model(images)
        features, hidden = place.read(seen[place]).float(), baseline(images, self.fill)
        return torch.stack(
            [
                self.weighted(
                    model, images[b : b + 1], features[b], hidden[b : b + 1], target.select(torch.tensor([b]))
                )
                for b in range(len(images))
            ]
        )

    def weighted(self, model: nn.Module, image: Tensor, features: Tensor, hidden: Tensor, target: Target) -> Tensor:
        """(C, H, W) of one image -> (H, W)."""
        varied = features.flatten(1).std(1).topk(min(self.channels, len(features))).indices
        chosen = features[varied]  # (S, H, W)
        low, high = chosen.amin((1, 2), keepdim=True), chosen.amax((1, 2), keepdim=True)
        masks = of_picture((chosen - low) / (high - low).clamp_min(1e-12), model)
        keep = to_image(masks, (image.shape[2], image.shape[3]))[:, None]
        scores = scores_of_masked(model, image, keep.to(image), hidden, target)[0]  # (S,)
        return F.relu(torch.einsum("s,shw->hw", scores.float().softmax(0), chosen))


METHODS = (ScoreCam(),)
