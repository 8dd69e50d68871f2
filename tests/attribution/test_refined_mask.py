"""The refined mask: its parts by hand, that it is better than its start, and what every costly method must keep."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.explained_models import family, pictures, trained
from vitreous.attribution.explainer import new_explainer
from vitreous.attribution.fill import baseline, soft_mask, standardised
from vitreous.attribution.frame import Framed
from vitreous.attribution.gradient import GradCam
from vitreous.attribution.gradient_contrast import GradientContrast
from vitreous.attribution.learned import Learned, carry_explainer
from vitreous.attribution.method import to_image
from vitreous.attribution.refined_mask import (
    AREAS,
    PRIORS,
    RefinedMask,
    best_prior,
    success,
)
from vitreous.attribution.segment_shapley import SegmentShapley
from vitreous.attribution.target import BoxTarget, ClassTarget, RegionTarget
from vitreous.errors import InputError
from vitreous.explanations.learning import Lessons, teach
from vitreous.faithfulness.curves import curves

IMAGES = pictures(2)
TARGET = ClassTarget(labels=torch.tensor([1, 3]))
FROM_LEARNED = RefinedMask(steps=1, rate=0.8, priors=(Learned(),))
CHEAP = (GradientContrast(points=2), SegmentShapley(pairs=8, count=4), RefinedMask(steps=2))


def test_a_mask_covers_its_area_and_success_is_the_log_of_the_probability():
    heat = standardised(torch.rand(2, 64, 64))
    torch.testing.assert_close(heat.mean((1, 2)), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(heat.std((1, 2)), torch.ones(2))
    for area in AREAS:
        assert ((soft_mask(heat, area) > 0.5).float().mean((1, 2)) - area).abs().max() < 1e-3
    assert torch.equal(standardised(torch.full((1, 4, 4), 3.0)), torch.zeros(1, 4, 4))
    model, hidden, mask = family(), baseline(IMAGES, "blur"), soft_mask(heat, 0.2)[:, None]
    with torch.no_grad():
        for shown in (True, False):
            keep = mask if shown else 1 - mask
            p = model(hidden + keep * (IMAGES - hidden)).softmax(1)[[0, 1], TARGET.labels]
            found = success(model, IMAGES, hidden, TARGET, heat, 0.2, shown)
            torch.testing.assert_close(found, (p if shown else 1 - p).log(), atol=1e-4, rtol=1e-4)


def test_one_step_by_hand():
    """Adam's first step has the length of its rate, in the direction of each cell's slope."""
    model, hidden = family(), baseline(IMAGES, "blur")
    with torch.no_grad():
        prior = best_prior(model, IMAGES, hidden, TARGET)
    grid = torch.zeros(2, 10, 10, requires_grad=True)
    heat = prior + F.interpolate(grid[:, None], (64, 64), mode="bilinear")[:, 0]
    ends = sum(success(model, IMAGES, hidden, TARGET, heat, AREAS[0], shown).sum() for shown in (True, False))
    slope = torch.autograd.grad(ends, grid)[0]
    moved = 0.4 * slope / (slope.abs() + 0.01 * slope.abs().mean((1, 2), keepdim=True))
    expected = prior + to_image(moved, (64, 64))
    found = RefinedMask(steps=1)(model, IMAGES, TARGET)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


def test_every_image_starts_from_the_better_prior():
    model, hidden = family(), baseline(IMAGES, "blur")
    with torch.no_grad():
        chosen = best_prior(model, IMAGES, hidden, TARGET)
        maps = [standardised(to_image(prior(model, IMAGES, TARGET), (64, 64))) for prior in PRIORS]
        worth = [
            sum(success(model, IMAGES, hidden, TARGET, heat, 0.2, shown) for shown in (True, False)) for heat in maps
        ]
    for b in range(2):
        better = int(worth[1][b] > worth[0][b])
        torch.testing.assert_close(chosen[b], maps[better][b])


def test_it_is_more_faithful_than_its_priors():
    model, images, labels, _ = trained()
    target = ClassTarget(labels=labels)
    refined, *priors = (
        curves(model, images, method(model, images, target), target).difference.mean()
        for method in (RefinedMask(), GradientContrast(), GradCam())
    )
    assert refined > max(priors) + 0.02


def test_it_starts_from_a_learned_map_where_there_is_one():
    model, images, labels, _ = trained()
    model, target = copy.deepcopy(model), ClassTarget(labels=labels)
    assert "learned" in FROM_LEARNED.missing(model)
    carry_explainer(model, teach(model, images, Lessons(steps=20, batch_size=8))[0])
    assert FROM_LEARNED.missing(model) is None
    assert (FROM_LEARNED.name, FROM_LEARNED.needs.passes) == ("refined_learned_7", 7)
    refined, learned = (
        curves(model, images, method(model, images, target), target).difference.mean()
        for method in (FROM_LEARNED, Learned())
    )
    assert refined > learned + 0.02


def test_passes_are_counted():
    for method in (RefinedMask(steps=2), GradientContrast(points=2), FROM_LEARNED):
        model, forward = family(), []
        carry_explainer(model, new_explainer(model, IMAGES))
        first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
        first.register_forward_pre_hook(lambda _module, inputs, seen=forward: seen.append(inputs[0].requires_grad))
        method(model, IMAGES[:1], TARGET.select(torch.tensor([0])))
        assert len(forward) + 2 * sum(forward) == method.needs.passes
    with pytest.raises(InputError, match="1 step and 2 cells"):
        RefinedMask(steps=0)


@pytest.mark.parametrize("method", CHEAP, ids=lambda method: method.name)
def test_any_size_half_precision_and_nothing_left_behind(method):
    model = family()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert method(model, pictures(2, 96, 64), TARGET).isfinite().all()
    for kind in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", kind):
            heat = method(model, IMAGES, TARGET)
        assert heat.isfinite().all()
        assert heat.dtype == torch.float32
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


class Boxes(nn.Module):
    """A detector of one object, as sure of it as the top left quarter is bright."""

    def forward(self, x):
        scores = torch.sigmoid(4 * x[:, :, :32, :32].mean((1, 2, 3)))
        box = torch.tensor([[0.0, 0.0, 32.0, 32.0]])
        return [dict(boxes=box, labels=torch.tensor([1]), scores=score[None]) for score in scores]


class Labels(nn.Module):
    """A segmenter whose class 1 is brightness."""

    def forward(self, x):
        bright = F.avg_pool2d(x, 4).mean(1)
        return torch.stack([-bright, bright], 1)


@pytest.mark.parametrize("method", CHEAP, ids=lambda method: method.name)
def test_findings_are_explained_too(method):
    images, region = IMAGES.clamp_min(0) + 0.2, torch.zeros(2, 64, 64, dtype=torch.bool)
    region[:, :32, :32] = True
    labels = torch.tensor([1, 1])
    box = BoxTarget(labels=labels, boxes=torch.tensor([[0.0, 0.0, 32.0, 32.0]]).expand(2, -1))
    for model, target in ((Boxes(), box), (Labels(), RegionTarget(labels=labels, region=region))):
        heat = method(Framed(model, (64, 64), (80, 96), torch.zeros(3)).eval(), images, target)
        inside = to_image(heat, (64, 64))
        assert inside[:, :28, :28].mean() > inside[:, 36:, 36:].mean()
        nothing = method(model.eval(), images * 0 - 5, target)  # nothing to see: no map, and no failure
        assert nothing.isfinite().all()
