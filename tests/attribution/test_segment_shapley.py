"""Segments divide the image along what differs, and the regression finds what each of them adds."""

import pytest
import torch
from torch import nn

from tests.support.explained_models import family, pictures
from vitreous.attribution.controls import noise_for
from vitreous.attribution.segment_shapley import SegmentShapley, ridge_regression
from vitreous.attribution.segments import k_means, segments
from vitreous.attribution.target import ClassTarget
from vitreous.errors import InputError
from vitreous.layers.tap import record


def test_k_means_finds_groups_that_lie_apart():
    random = torch.Generator().manual_seed(0)
    truth = torch.arange(4).repeat(10)
    corners = torch.tensor([[0.0, 0.0], [0.0, 9.0], [9.0, 0.0], [9.0, 9.0]])
    points = (corners[truth] + 0.3 * torch.randn(40, 2, generator=random)).expand(2, -1, -1)
    for labels in k_means(points.double(), torch.rand(2, 4, generator=random)):
        assert len({(a, b) for a, b in zip(truth.tolist(), labels.tolist(), strict=True)}) == 4


@pytest.mark.parametrize(("height", "width"), [(64, 64), (48, 80)])
@pytest.mark.parametrize("model", [family(), nn.Flatten()])
def test_segments_divide_the_image(model, height, width):
    parts = segments(model, pictures(2, height, width), 16)
    torch.testing.assert_close(parts.sum(1), torch.ones(2, *parts.shape[2:]))
    assert (parts.flatten(2).any(2).sum(1) > 4).all()


def test_segments_of_a_paca_are_on_the_grid_of_its_clusters():
    model, images = family(), pictures(1)
    with torch.no_grad(), record(model, "stages.2.blocks.*.attention.map") as seen:
        model(images)
    assert segments(model, images, 8).shape[2:] == next(iter(seen.values())).shape[-2:]


def test_segments_follow_a_border_of_colours():
    image = torch.full((1, 3, 64, 64), -2.0)
    image[:, :, :, 26:] = 2.0  # at thirteen of 32 cells
    left = segments(nn.Flatten(), image, 6)[0, :, :, :12].sum((1, 2))
    right = segments(nn.Flatten(), image, 6)[0, :, :, 14:].sum((1, 2))
    assert (torch.minimum(left, right) == 0).all()


def test_the_regression_is_that_of_the_normal_equations():
    random = torch.Generator().manual_seed(0)
    inputs, truth = torch.rand(1, 40, 5, generator=random), torch.tensor([[3.0, -1.0, 0.0, 0.5, 2.0]])
    outputs = (inputs @ truth[:, :, None])[:, :, 0] + 7
    torch.testing.assert_close(ridge_regression(inputs, outputs, 1e-6), truth, atol=1e-3, rtol=1e-3)
    assert (ridge_regression(inputs, outputs, 50.0).abs() < truth.abs().amax()).all()


class Halves(nn.Module):
    """Class 1 is as probable as the left half is bright: linear in the image."""

    def forward(self, x):
        return torch.stack(
            [torch.zeros(len(x)), x[..., : x.shape[3] // 2].mean((1, 2, 3)).clamp(0.02, 0.98).logit()], 1
        )


def test_what_adds_is_hot_and_the_rest_is_not():
    image = 0.8 + 0.1 * pictures(1).clamp(-1, 1)
    heat = SegmentShapley(pairs=24, fill="mean")(Halves().eval(), image, 1)[0]
    assert heat[:, :13].mean() > 3 * heat[:, 19:].abs().mean()


def test_coalitions_come_with_their_complements_and_depend_on_the_image_alone():
    images = pictures(3)
    kept = SegmentShapley(pairs=4).coalitions(images, 6)
    torch.testing.assert_close(kept[:, ::2] + kept[:, 1::2], torch.ones(3, 4, 6))
    torch.testing.assert_close(kept[2:], SegmentShapley(pairs=4).coalitions(images[2:], 6))
    assert not torch.equal(kept[0], kept[1])
    assert torch.equal(noise_for(images.bfloat16(), 3)[1], noise_for(images.bfloat16()[1:], 3)[0])


def test_one_pass_for_the_segments_and_two_a_pair(monkeypatch):
    model, passes = family(), []
    model.register_forward_pre_hook(lambda _module, inputs: passes.append(len(inputs[0])))
    SegmentShapley(pairs=5)(model, pictures(1), ClassTarget(labels=torch.tensor([1])))
    assert sum(passes) == SegmentShapley(pairs=5).needs.passes
    with pytest.raises(InputError, match="1 pair and 2 segments"):
        SegmentShapley(pairs=0)
