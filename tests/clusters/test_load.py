"""Causal load: the interventions do what they say, and leave the model as it was."""

import pytest
import torch
from torch import nn

from tests.support.explained_models import entering, family, pictures
from vitreous.attribution.target import ClassTarget
from vitreous.clusters.load import attention_off, causal_load, uniform
from vitreous.errors import InputError

IMAGES = pictures(3)
TARGET = ClassTarget(labels=torch.tensor([0, 3, 4]))


@pytest.mark.parametrize("changes", [{}, dict(recluster=1)], ids=str)
def test_uniform_clusters_are_all_the_mean_of_the_patches(changes):
    model = family(**changes)
    with torch.no_grad():
        plain = model(IMAGES)
        with uniform(model, 3):
            (x, z) = entering(model, "stages.2.blocks.1.attention", IMAGES)
            changed = model(IMAGES)
        assert torch.equal(model(IMAGES), plain)
    assert (z == 1 / 16).all()
    tokens = z.flatten(2) @ x.flatten(1, 2)
    torch.testing.assert_close(tokens, x.mean((1, 2))[:, None].expand_as(tokens), atol=1e-5, rtol=1e-4)
    assert (changed - plain).abs().max() > 1e-3


def test_attention_off_is_a_network_without_those_branches():
    model, other = family(), family()
    for block in other.stages[1].blocks:
        nn.init.zeros_(block.attention.proj.weight)
        nn.init.zeros_(block.attention.proj.bias)
    with torch.no_grad(), attention_off(model, 2):
        torch.testing.assert_close(model(IMAGES), other(IMAGES))


def test_the_load_of_every_stage():
    model = family()
    loads = causal_load(model, IMAGES, TARGET, keep=(1, 5))
    assert [load.stage for load in loads] == [1, 2, 3]
    for load in loads:
        with torch.no_grad(), uniform(model, load.stage):
            after = model(IMAGES)
        torch.testing.assert_close(load.drop(), TARGET(model(IMAGES)) - TARGET(after))
        assert torch.equal(load.flips(), TARGET.holds(model(IMAGES)) & ~TARGET.holds(after))
        assert torch.equal(load.carries, load.drop().abs() >= 0.1)
        assert set(load.scores) == {"uniform", "attention_off", "all but 1", "all but 5"}


def test_single_images_bear_the_same_load_as_in_a_batch():
    model = family()
    whole = causal_load(model, IMAGES, TARGET, stages=[3])[0]
    rows = [torch.tensor([0, 1]), torch.tensor([2])]
    parts = [causal_load(model, IMAGES[r], TARGET.select(r), stages=[3])[0] for r in rows]
    for name, scores in whole.scores.items():
        torch.testing.assert_close(torch.cat([part.scores[name] for part in parts]), scores, atol=1e-5, rtol=1e-4)


def test_stages_without_clusters_are_refused():
    with pytest.raises(InputError, match="stages with clusters: 1, 2, 3"):
        causal_load(family(), IMAGES, TARGET, stages=[4])
    with pytest.raises(InputError, match="at least 1 cluster must stay"):
        causal_load(family(), IMAGES, TARGET, keep=(0,))
