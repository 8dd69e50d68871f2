"""What a method could flatter itself with, and above all one that has learned to please insertion and deletion.

difference_noise   insertion minus deletion where the image's own pixels in random order hide, and
difference_colour  where one of its colours does: no explainer has been taught with either.
runner_up          the same, with the blur, for the class that came second, explained by its own map.
class_likeness     Spearman correlation of the maps of both classes. At 1 the map does not know what it explains; two
                   breeds of cat may rightly have similar maps.

Shapes: B images.
"""

import torch
from torch import Tensor, nn

from vitreous.attribution.fill import NEVER_TAUGHT
from vitreous.attribution.method import Method
from vitreous.attribution.target import ClassTarget, Target
from vitreous.faithfulness.curves import curves
from vitreous.faithfulness.sanity import map_similarity

DOUBTS = (*(f"difference_{fill}" for fill in NEVER_TAUGHT), "runner_up", "class_likeness")


def doubtful_measures(
    method: Method, model: nn.Module, images: Tensor, target: Target, heat: Tensor, portions: int
) -> dict[str, Tensor]:
    """Every one of `DOUBTS`, each (B,); of what is no class, those that hide."""
    found = {
        f"difference_{fill}": curves(model, images, heat, target, fill=fill, portions=portions).difference
        for fill in NEVER_TAUGHT
    }
    if isinstance(target, ClassTarget):
        second = runner_up(model, images, target)
        other = method(model, images, second)
        found["runner_up"] = curves(model, images, other, second, portions=portions).difference
        found["class_likeness"] = map_similarity(heat, other)
    return found


def runner_up(model: nn.Module, images: Tensor, target: ClassTarget) -> ClassTarget:
    """The most probable class besides the one that is explained."""
    with torch.no_grad():
        output = model(images)
    return ClassTarget(labels=output.scatter(1, target.labels[:, None], -torch.inf).argmax(1))
