"""Importance by masking, re-derived in plain loops; ranking, entropy and the choice of the layer."""

import math

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F

import vitreous  # noqa: F401  (registers the models)
from vitreous.attribution.fill import blurred
from vitreous.clusters.masking import (
    Masking,
    choose_layer,
    entropy,
    keep_masks,
    layer_maps,
    likeness,
    rank,
    rank_clusters,
    stretch,
)
from vitreous.errors import InputError
from vitreous.layers.tap import record

SMALL = dict(dims=(8, 16, 24, 32), depths=(1, 1, 2, 1), heads=(1, 2, 3, 4), clusters=(6, 6, 6, 0))


def normalise(x):
    return (x - 0.4) / 0.3


def build(name="paca_tiny", **changes):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **(SMALL | changes)).eval()
    with torch.no_grad():  # fresh weights are so small that every map is flat and every score zero
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


@pytest.fixture(scope="module")
def model():
    return build()


@pytest.fixture(scope="module")
def picture():
    return torch.rand(3, 64, 48, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def maps(model, picture):
    return layer_maps(model, normalise(picture)[None], choose_layer(model))[0]


@pytest.mark.parametrize("space", ["pixels", "normalised"])
@pytest.mark.parametrize("target", [None, 3])
def test_importance_is_the_papers_formula(model, picture, maps, space, target):
    result = rank_clusters(model, picture, maps, normalise=normalise, target=target, masking=Masking(space=space))
    with torch.no_grad():
        p = model(normalise(picture)[None]).softmax(1)[0]
        y = int(p.argmax()) if target is None else target
        for m, z in enumerate(maps):
            h = (z - z.min()) / (z.max() - z.min())
            mask = F.interpolate((1 - h)[None, None], (64, 48), mode="bilinear", align_corners=False)[0]
            x_m = normalise(picture * mask) if space == "pixels" else normalise(picture) * mask
            s_m = p[y] - model(x_m[None]).softmax(1)[0, y]
            assert abs(result.importance[m] - s_m) < 1e-5
            positive = z.numpy()[z.numpy() > 0]  # 0 log 0 is 0
            assert abs(result.entropy[m] + float(np.sum(positive * np.log(positive)))) < 1e-4
    assert result.target == y
    assert result.importance.abs().max() > 1e-3  # or the comparison above says nothing


def test_blur_hides_with_a_blurred_copy_in_either_space(model, picture, maps):
    scores = [
        rank_clusters(model, picture, maps, normalise=normalise, masking=Masking(space=space, fill="blur")).importance
        for space in ("pixels", "normalised")
    ]
    torch.testing.assert_close(scores[0], scores[1], atol=1e-6, rtol=0)
    with torch.no_grad():
        hidden, keep = blurred(normalise(picture)[None], 48 / 6), keep_masks(maps, (64, 48))
        after = model(normalise(picture) * keep + hidden * (1 - keep)).softmax(1)
        before = model(normalise(picture)[None]).softmax(1)[0]
    y = before.argmax()
    torch.testing.assert_close(scores[0], before[y] - after[:, y], atol=1e-5, rtol=0)


def test_batch_size_does_not_matter(model, picture, maps):
    scores = [
        rank_clusters(model, picture, maps, normalise=normalise, masking=Masking(batch_size=n)).importance
        for n in (1, 4, 64)
    ]
    torch.testing.assert_close(scores[0], scores[1], atol=1e-5, rtol=0)
    torch.testing.assert_close(scores[0], scores[2], atol=1e-5, rtol=0)


def test_same_input_same_result(model, picture, maps):
    first, second = (rank_clusters(model, picture, maps, normalise=normalise) for _ in range(2))
    assert torch.equal(first.importance, second.importance)
    assert torch.equal(first.order, second.order)


def test_flat_map_hides_nothing(model, picture):
    result = rank_clusters(model, picture, torch.full((1, 4, 3), 0.5), normalise=normalise)
    assert abs(result.importance[0]) < 1e-6
    assert abs(result.entropy[0] - math.log(12)) < 1e-5


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


def test_entropy_of_a_point_is_zero():
    point = torch.zeros(1, 4, 4)
    point[0, 2, 1] = 1
    assert entropy(point).item() == 0


def test_likeness_is_the_mean_correlation():
    maps = torch.rand(5, 4, 3)
    correlation = np.corrcoef(maps.flatten(1).numpy())
    expected = (correlation.sum() - 5) / 20
    assert abs(likeness(maps) - expected) < 1e-5
    assert abs(likeness(maps[:1].expand(4, 4, 3)) - 1) < 1e-5
    assert likeness(torch.ones(3, 4, 4)) == 0
    assert likeness(maps[:1]) == 1


def test_rank_puts_the_concentrated_map_first_within_a_tie():
    importance = torch.tensor([0.10, 0.50, 0.101, 0.4995, 0.0])
    spread = torch.tensor([1.0, 3.0, 2.0, 1.0, 0.0])
    assert rank(importance, spread, 0.002).tolist() == [3, 1, 0, 2, 4]
    assert rank(importance, spread, 0.0).tolist() == [1, 3, 2, 0, 4]
    assert rank(torch.zeros(3), torch.zeros(3), 0.0).tolist() == [0, 1, 2]


def test_a_chain_of_near_ties_is_not_one_tie():
    """0.3, 0.2, 0.1 with tolerance 0.1: the last is too far from the first."""
    assert rank(torch.tensor([0.3, 0.205, 0.11]), torch.tensor([3.0, 2.0, 1.0]), 0.1).tolist() == [1, 0, 2]


def test_default_layer_is_the_last_with_clusters(model):
    layer = choose_layer(model)
    assert (layer.stage, layer.block, layer.tap) == (3, None, "stages.2.clusters")
    assert choose_layer(model, stage=1).tap == "stages.0.clusters"


def test_blockwise_model_has_a_layer_per_block(picture):
    blockwise = build("paca_tiny", recluster=1)
    assert choose_layer(blockwise).tap == "stages.2.clusters.1"
    first = choose_layer(blockwise, stage=3, block=1)
    assert first.tap == "stages.2.clusters.0"
    assert layer_maps(blockwise, normalise(picture)[None], first).shape[:2] == (1, 6)
    with pytest.raises(InputError, match="blocks that have: 1, 2"):
        choose_layer(blockwise, block=9)


def test_attention_maps_by_head_or_averaged(model, picture):
    layer = choose_layer(model, source="attention")
    assert layer.tap == "stages.2.blocks.1.attention.map"
    inputs = normalise(picture)[None]
    with torch.no_grad(), record(model, layer.tap) as recorded:
        model(inputs)
    attention = recorded[layer.tap]  # (1, 3 heads, 6, 4, 3)
    torch.testing.assert_close(layer_maps(model, inputs, layer), attention.mean(1))
    torch.testing.assert_close(layer_maps(model, inputs, layer, head=2), attention[:, 1])
    result = rank_clusters(model, picture, attention.mean(1)[0], normalise=normalise)
    torch.testing.assert_close(result.maps.sum((1, 2)), torch.ones(6))
    with pytest.raises(InputError, match="heads 1 to 3"):
        layer_maps(model, inputs, layer, head=4)


def test_bad_layers_are_explained(model):
    with pytest.raises(InputError, match="stages with clusters: 1, 2, 3"):
        choose_layer(model, stage=4)
    with pytest.raises(InputError, match="no clusters to explain"):
        choose_layer(torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"stages\.0\.blocks\.0\.attention\.map"):
        choose_layer(build(clusters=(0, 0, 0, 0)))
