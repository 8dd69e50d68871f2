"""What an explainer points at and what pixels add to first order, from one pass forwards and backwards.

Our own. The explainer sees what is where, on a grid; gradient times contrast sees edges, and knows nothing that the
slope at one point does not tell. They err in different places, so that the sum of both, each standardised, is more
faithful than either.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitreous.attribution.explainer import look_inside
from vitreous.attribution.fill import Fill, baseline, standardised
from vitreous.attribution.gradient import without_weight_gradients
from vitreous.attribution.gradient_contrast import blurred_contrast, what_speaks_for_it
from vitreous.attribution.learned import Learned, class_labels, explainer_of, explains_itself
from vitreous.attribution.method import Method, Needs, to_image
from vitreous.attribution.target import Target


@dataclass(frozen=True)
class LearnedContrast(Method):
    """`learned` plus gradient x contrast at the image itself, where `gradient_contrast` looks halfway to its blur."""

    fill: Fill = "blur"

    order = 15
    name = "learned_contrast"
    summary = "What a small network has learned to point at, sharpened by what pixels add to first order."
    needs = Needs(passes=3, gradient=True)

    def missing(self, model: nn.Module) -> str | None:
        if explains_itself(model):
            return "an exported model has no gradients; take learned"
        if not hasattr(model, "forward_head"):
            return f"{type(model).__name__} has no forward_head, so that it cannot be asked and read in one pass"
        return Learned().missing(model)

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        labels, explainer = class_labels(target, images), explainer_of(model)
        assert explainer is not None
        with torch.enable_grad(), without_weight_gradients(model):
            pixels = images.detach().requires_grad_()
            inside = look_inside(model, pixels, explainer.stages)
            slope = torch.autograd.grad(target(model.forward_head(inside.final)).sum(), pixels)[0]  # type: ignore[operator]
        pointed = explainer.to(images.device).explain_inside(model, inside, labels)
        added = blurred_contrast(what_speaks_for_it(slope, images - baseline(images, self.fill)))
        return standardised(to_image(pointed, (images.shape[2], images.shape[3]))) + standardised(added)


METHODS = (LearnedContrast(),)
