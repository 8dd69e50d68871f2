"""The choice of a layer, its maps, and what is told from them."""

import numpy as np
import pytest
import torch

from tests.support.explained_models import family, pictures
from vitreous.clusters.layer import as_distributions, choose_layer, layer_maps, mean_correlation, spatial_entropy
from vitreous.errors import InputError
from vitreous.layers.tap import record

INPUTS = pictures(1, 64, 48)


@pytest.fixture(scope="module")
def model():
    return family()


def test_entropy_of_a_point_is_zero():
    point = torch.zeros(1, 4, 4)
    point[0, 2, 1] = 1
    assert spatial_entropy(point).item() == 0


def test_mean_correlation():
    maps = torch.rand(5, 4, 3)
    correlation = np.corrcoef(maps.flatten(1).numpy())
    expected = (correlation.sum() - 5) / 20
    assert abs(mean_correlation(maps) - expected) < 1e-5
    assert abs(mean_correlation(maps[:1].expand(4, 4, 3)) - 1) < 1e-5
    assert mean_correlation(torch.ones(3, 4, 4)) == 0
    assert mean_correlation(maps[:1]) == 1


def test_default_layer_is_the_last_with_clusters(model):
    layer = choose_layer(model)
    assert (layer.stage, layer.block, layer.tap) == (3, None, "stages.2.clusters")
    assert choose_layer(model, stage=1).tap == "stages.0.clusters"


def test_blockwise_model_has_a_layer_per_block():
    blockwise = family(recluster=1)
    assert choose_layer(blockwise).tap == "stages.2.clusters.1"
    first = choose_layer(blockwise, stage=3, block=1)
    assert first.tap == "stages.2.clusters.0"
    assert layer_maps(blockwise, INPUTS, first).shape[:2] == (1, 6)
    with pytest.raises(InputError, match="blocks that have: 1, 2"):
        choose_layer(blockwise, block=9)


def test_attention_maps_by_head_or_averaged(model):
    layer = choose_layer(model, source="attention")
    assert layer.tap == "stages.2.blocks.1.attention.map"
    with torch.no_grad(), record(model, layer.tap) as recorded:
        model(INPUTS)
    attention = recorded[layer.tap]  # (1, 3 heads, 6, 4, 3)
    torch.testing.assert_close(layer_maps(model, INPUTS, layer), attention.mean(1))
    torch.testing.assert_close(layer_maps(model, INPUTS, layer, head=2), attention[:, 1])
    torch.testing.assert_close(as_distributions(attention.mean(1)[0]).sum((1, 2)), torch.ones(6))
    with pytest.raises(InputError, match="heads 1 to 3"):
        layer_maps(model, INPUTS, layer, head=4)


def test_bad_layers_are_explained(model):
    with pytest.raises(InputError, match="stages with clusters: 1, 2, 3"):
        choose_layer(model, stage=4)
    with pytest.raises(InputError, match="no clusters to explain"):
        choose_layer(torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"stages\.0\.blocks\.0\.attention\.map"):
        choose_layer(family(clusters=(0, 0, 0, 0)))
