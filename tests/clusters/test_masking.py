"""Importance by masking, re-derived in plain loops."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support.explained_models import family
from vitreous.attribution.fill import blurred
from vitreous.attribution.target import ClassTarget
from vitreous.clusters.layer import choose_layer, layer_maps, spatial_entropy, stretch
from vitreous.clusters.masking import Masking, by_masking, keep_masks
from vitreous.errors import InputError


def normalise(x):
    return (x - 0.4) / 0.3


@pytest.fixture(scope="module")
def model():
    return family()


@pytest.fixture(scope="module")
def picture():
    return torch.rand(3, 64, 48, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def maps(model, picture):
    return layer_maps(model, normalise(picture)[None], choose_layer(model))[0]


def importance(model, picture, maps, label=None, **settings):
    """Of the maps (M, H, W) of one picture: (M,)."""
    images = normalise(picture)[None]
    labels = model(images).argmax(1) if label is None else torch.tensor([label])
    black = normalise(torch.zeros_like(picture))[None]
    target, layer = ClassTarget(labels=labels), choose_layer(model)
    return by_masking(model, images, target, layer, masking=Masking(**settings), black=black, maps=maps[None])[0]


@pytest.mark.parametrize("space", ["pixels", "normalised"])
@pytest.mark.parametrize("label", [None, 3])
def test_importance_is_the_papers_formula(model, picture, maps, space, label):
    found = importance(model, picture, maps, label, space=space)
    with torch.no_grad():
        p = model(normalise(picture)[None]).softmax(1)[0]
        y = int(p.argmax()) if label is None else label
        for m, z in enumerate(maps):
            h = (z - z.min()) / (z.max() - z.min())
            mask = F.interpolate((1 - h)[None, None], (64, 48), mode="bilinear", align_corners=False)[0]
            x_m = normalise(picture * mask) if space == "pixels" else normalise(picture) * mask
            s_m = p[y] - model(x_m[None]).softmax(1)[0, y]
            assert abs(found[m] - s_m) < 1e-5
            positive = z.numpy()[z.numpy() > 0]  # 0 log 0 is 0
            assert abs(spatial_entropy(maps)[m] + float(np.sum(positive * np.log(positive)))) < 1e-4
    assert found.abs().max() > 1e-3  # or the comparison above says nothing


def test_blur_hides_with_a_blurred_copy_in_either_space(model, picture, maps):
    scores = [importance(model, picture, maps, space=space, fill="blur") for space in ("pixels", "normalised")]
    torch.testing.assert_close(scores[0], scores[1], atol=1e-6, rtol=0)
    with torch.no_grad():
        hidden, keep = blurred(normalise(picture)[None], 48 / 6), keep_masks(maps, (64, 48))
        after = model(normalise(picture) * keep + hidden * (1 - keep)).softmax(1)
        before = model(normalise(picture)[None]).softmax(1)[0]
    y = before.argmax()
    torch.testing.assert_close(scores[0], before[y] - after[:, y], atol=1e-5, rtol=0)


def test_batch_size_does_not_matter(model, picture, maps):
    scores = [importance(model, picture, maps, batch_size=n) for n in (1, 4, 64)]
    torch.testing.assert_close(scores[0], scores[1], atol=1e-5, rtol=0)
    torch.testing.assert_close(scores[0], scores[2], atol=1e-5, rtol=0)


def test_same_input_same_result(model, picture, maps):
    first, second = (importance(model, picture, maps) for _ in range(2))
    assert torch.equal(first, second)


def test_flat_map_hides_nothing(model, picture):
    flat = torch.full((1, 4, 3), 1 / 12)
    assert abs(importance(model, picture, flat)[0]) < 1e-6
    assert abs(spatial_entropy(flat)[0] - math.log(12)) < 1e-5


def test_stretch_and_masks():
    maps = torch.tensor([[[0.1, 0.3], [0.2, 0.4]], [[0.25, 0.25], [0.25, 0.25]]])
    assert stretch(maps)[0].min() == 0
    assert stretch(maps)[0].max() == 1
    assert (stretch(maps)[1] == 0).all()
    for interpolation in ("bilinear", "bicubic", "nearest"):
        keep = keep_masks(maps, (5, 7), interpolation)
        assert keep.shape == (2, 1, 5, 7)
        assert keep.min() >= 0
        assert keep.max() <= 1


@pytest.mark.parametrize("tolerance", [-0.1, math.nan])
def test_a_tolerance_is_a_difference_of_scores(tolerance):
    with pytest.raises(InputError, match=f"tie_tolerance={tolerance} given"):
        Masking(tie_tolerance=tolerance)


def test_black_must_be_told(model, picture, maps):
    with pytest.raises(InputError, match="give its normalised value too"):
        by_masking(
            model, picture[None], ClassTarget(labels=torch.tensor([0])), choose_layer(model), masking=Masking("pixels")
        )
