"""What a map is worth as a loss: its top area, shown alone, is to keep a class, and hidden alone, to take it away.

An explainer is taught with it (`explanations.learning`), and a model whose classifier reads clusters can be trained so
that its own contributions are such a map (`training.faithful`). How much is shown is drawn anew for every image, since
insertion and deletion ask for all shares.

Shapes: B images, H W grid of the map.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.fill import Fill, baseline, blend, soft_mask, standardised
from vitreous.attribution.method import to_image
from vitreous.attribution.target import ClassTarget

SHARES = 0.05, 0.6  # of the picture that is shown or hidden
TAUGHT_FILLS: tuple[tuple[Fill, float], ...] = (("blur", 0.75), ("mean", 0.25))  # what hides, and how often
CERTAINTY_WEIGHT = 0.05  # of log-probabilities beside probabilities: without them no slope is left where one is near 0


def marking_loss(model: nn.Module, images: Tensor, heat: Tensor, labels: Tensor, random: torch.Generator) -> Tensor:
    """Of maps (B, H, W) for one class an image: two forward passes of the model for each image, with a gradient."""
    heat = standardised(heat)  # or training diverges on photographs
    low, high = SHARES
    share = low + (high - low) * torch.rand(len(images), generator=random).to(images)
    shown = soft_mask(to_image(heat, (images.shape[2], images.shape[3])), share)[:, None]
    hidden = baseline(images, draw_fill(random))
    both = torch.cat([blend(images, shown, hidden), blend(images, 1 - shown, hidden)])
    target = ClassTarget(labels=labels.repeat(2), scale="probability")
    output = model(both.contiguous(memory_format=torch.channels_last))
    with_it, without_it = target(output).chunk(2)
    certainty = target.on("log_odds")(output).chunk(2)
    unsure = F.softplus(-certainty[0]) + F.softplus(certainty[1])  # log p and log (1 - p), from log-odds
    return (without_it - with_it + CERTAINTY_WEIGHT * unsure).mean()


def draw_fill(random: torch.Generator) -> Fill:
    fills, shares = zip(*TAUGHT_FILLS, strict=True)
    return fills[int(torch.multinomial(torch.tensor(shares), 1, generator=random))]
