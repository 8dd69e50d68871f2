"""Gradient times contrast is its formula, and is zero where there is no contrast."""

import pytest
import torch
from torch import nn

from tests.support.explained_models import family, pictures
from vitreous.attribution.fill import baseline, blurred
from vitreous.attribution.gradient_contrast import GradientContrast
from vitreous.attribution.target import ClassTarget
from vitreous.errors import InputError

TARGET = ClassTarget(labels=torch.tensor([1, 3]))


@pytest.mark.parametrize("points", [1, 2])
def test_it_is_the_formula(points):
    model, images = family(), pictures(2)
    hidden, total = baseline(images, "blur"), 0
    for share in {1: (0.5,), 2: (0.25, 0.75)}[points]:
        at = (hidden + share * (images - hidden)).requires_grad_()
        slope = torch.autograd.grad(TARGET(model(at)).sum(), at)[0]
        total = total + (slope * (images - hidden)).sum(1, keepdim=True).clamp_min(0) / points
    heat = GradientContrast(points)(model, images, TARGET)
    torch.testing.assert_close(heat, blurred(total, 64 / 20)[:, 0].detach(), atol=1e-5, rtol=1e-4)
    assert GradientContrast(points).needs.passes == 3 * points


def test_of_a_linear_model_every_point_tells_the_same():
    model, images = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 12, 5)).eval(), pictures(2, 8, 12)
    one, three = (GradientContrast(points)(model, images, TARGET.on("logit")) for points in (1, 3))
    torch.testing.assert_close(one, three)


def test_where_the_picture_is_its_own_blur_nothing_matters():
    assert GradientContrast()(family(), torch.full((2, 3, 64, 64), 0.5), TARGET).abs().max() < 1e-5
    with pytest.raises(InputError, match="points=0 given"):
        GradientContrast(points=0)
