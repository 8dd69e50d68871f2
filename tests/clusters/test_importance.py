"""Rankings of clusters: each against its definition, and the gradient of a gate against what it approximates."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.explained_models import counting, family, pictures, trained
from vitreous.attribution.fill import baseline
from vitreous.attribution.target import ClassTarget
from vitreous.clusters.gates import PartialForward, cluster_layer, gated
from vitreous.clusters.groups import ablate_groups, group_gates, group_maps, group_sum, several
from vitreous.clusters.importance import (
    RANKINGS,
    by_ablation,
    by_attention_mass,
    by_integration,
    by_logit_gate,
    by_value_gate,
    rankings_for,
    removal_curve,
)
from vitreous.clusters.layer import map_correlation
from vitreous.clusters.masking import Masking, by_masking
from vitreous.clusters.ranks import rank_correlation
from vitreous.errors import InputError
from vitreous.layers.tap import record

IMAGES = pictures(2, 64, 48)
TARGET = ClassTarget(labels=torch.tensor([1, 3]))
MODEL = family()
LAYER = cluster_layer(MODEL)


def score(model, images, target, **gates):
    with torch.no_grad(), gated(model, 3, **gates):
        return target(model(images))


@pytest.mark.parametrize("name", rankings_for(LAYER))
def test_single_images_are_ranked_as_in_a_batch(name):
    both = RANKINGS[name](MODEL, IMAGES, TARGET, LAYER)
    alone = RANKINGS[name](MODEL, IMAGES[1:], TARGET.select(torch.tensor([1])), LAYER)
    assert both.shape == (2, 6)
    assert both.abs().max() > 1e-3  # or equality says nothing
    torch.testing.assert_close(both[1:], alone, atol=1e-5, rtol=1e-4)


def test_ablation_is_the_log_odds_lost():
    whole = score(MODEL, IMAGES, TARGET)
    lost = by_ablation(MODEL, IMAGES, TARGET, LAYER)
    for m in range(6):
        gate = torch.ones(6)
        gate[m] = 0
        torch.testing.assert_close(
            lost[:, m], whole - score(MODEL, IMAGES, TARGET, logit_gate=gate), atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize(("function", "kind"), [(by_logit_gate, "logit_gate"), (by_value_gate, "value_gate")])
def test_gate_gradients_are_the_slope_of_a_small_change(function, kind):
    model, images = family().double(), IMAGES.double()
    slope, step = function(model, images, TARGET, LAYER), 1e-3
    for m in range(6):
        bent = step * torch.eye(6, dtype=torch.float64)[m]
        up, down = (score(model, images, TARGET, **{kind: 1 + sign * bent}) for sign in (1, -1))
        # A central difference is off by the third derivative times the step squared.
        torch.testing.assert_close(slope[:, m], (up - down) / (2 * step), atol=1e-6, rtol=1e-4)


def test_integrated_gates_add_up_to_what_the_clusters_do_together():
    together = score(MODEL, IMAGES, TARGET) - score(MODEL, IMAGES, TARGET, value_gate=torch.zeros(6))
    added = by_integration(MODEL, IMAGES, TARGET, LAYER, steps=64).sum(1)
    assert together.abs().max() > 0.01
    torch.testing.assert_close(added, together, atol=1e-3, rtol=1e-2)  # the rule's own error falls with steps squared


def test_attention_mass_is_the_mean_of_the_attention():
    with torch.no_grad(), record(MODEL, "stages.2.blocks.*.attention.map") as seen:
        MODEL(IMAGES)
    mass = by_attention_mass(MODEL, IMAGES, TARGET, LAYER)
    torch.testing.assert_close(mass, sum(a.mean((1, 3, 4)) for a in seen.values()) / 2)
    torch.testing.assert_close(mass.sum(1), torch.ones(2))


BLACK = torch.full((1, 3, 1, 1), -2.0)


@pytest.mark.parametrize(
    ("settings", "fill"),
    [({}, "mean"), ({"fill": "blur"}, "blur"), ({"space": "pixels"}, BLACK)],
    ids=["mean", "blur", "black"],
)
def test_masking_is_the_papers_formula(settings, fill):
    lost = by_masking(MODEL, IMAGES, TARGET, LAYER, masking=Masking(**settings, batch_size=4), black=BLACK)
    hidden = baseline(IMAGES, fill)
    with torch.no_grad(), record(MODEL, LAYER.tap) as seen:
        p = MODEL(IMAGES).softmax(1)
    maps = seen[LAYER.tap]
    for b in range(2):
        for m in range(6):
            z = maps[b, m]
            h = F.interpolate(((z - z.min()) / (z.max() - z.min()))[None, None], (64, 48), mode="bilinear")[0]
            with torch.no_grad():
                after = MODEL((IMAGES[b] * (1 - h) + hidden[b] * h)[None]).softmax(1)[0, TARGET.labels[b]]
            assert abs(lost[b, m] - (p[b, TARGET.labels[b]] - after)) < 1e-5


def test_gate_gradient_ranks_like_exact_ablation_on_a_trained_model():
    model, images, labels, _masks = trained()
    layer, target = cluster_layer(model), ClassTarget(labels=labels)
    assert target.holds(model(images)).float().mean() >= 0.5  # it has learned: chance is 0.1
    importances = {name: RANKINGS[name](model, images, target, layer) for name in ("ablation", "logit_gate", "random")}
    agreement = {
        name: rank_correlation(importances[name], importances["ablation"]).mean() for name in ("logit_gate", "random")
    }
    assert agreement["logit_gate"] >= 0.95
    assert abs(agreement["random"]) < 0.5
    rest = PartialForward(model, images, layer)
    curve = {name: removal_curve(rest, target, value, [0, 3, 6]).mean(0) for name, value in importances.items()}
    assert curve["ablation"][0] == curve["random"][0]
    assert curve["ablation"][1] < curve["random"][1]  # what was called important mattered more


def test_the_random_ranking_differs_between_images_and_comes_again():
    layer = cluster_layer(MODEL)
    both = RANKINGS["random"](MODEL, IMAGES, TARGET, layer)
    assert not torch.equal(both[0], both[1])
    assert torch.equal(both[1:], RANKINGS["random"](MODEL, IMAGES[1:], TARGET, layer))


def test_cost_in_images_that_pass_each_stage():
    """One pass for all; then gates 1, integration 8 and ablation 6 of the rest alone, and masking 6 whole ones."""
    expected = {"logit_gate": (1, 2), "value_gate": (1, 2), "attention_mass": (1, 1), "integrated": (1, 9)}
    expected |= {"ablation": (1, 7), "masking": (7, 7)}
    for name, passes in expected.items():
        first, end_first = counting(MODEL.stages[0].blocks[0].mlp)
        last, end_last = counting(MODEL.stages[3].blocks[0].mlp)
        RANKINGS[name](MODEL, IMAGES[:1], TARGET.select(torch.tensor([0])), LAYER)
        end_first(), end_last()
        assert (sum(first), sum(last)) == passes, name


def test_removal_curve_refuses_to_remove_all():
    rest = PartialForward(MODEL, IMAGES, LAYER)
    with pytest.raises(InputError, match="0 to 5 can be"):
        removal_curve(rest, TARGET, torch.rand(2, 6), [6])
    one = family(clusters=(1, 1, 1, 0))
    with pytest.raises(InputError, match="one cluster"):
        by_ablation(one, IMAGES, TARGET, cluster_layer(one))


def test_groups_hold_what_is_alike():
    base = torch.rand(3, 4, 4)
    maps = torch.stack([base[0], base[1], base[0] * 2, base[2], base[1] + 0.1])
    assert group_maps(maps, alike=0.99).tolist() == [0, 1, 0, 2, 1]
    assert group_maps(maps, alike=-1).max() == 1  # two always stay
    torch.testing.assert_close(map_correlation(maps)[0, 2], torch.tensor(1.0))
    label = group_maps(maps, alike=0.99)
    torch.testing.assert_close(group_sum(maps, label)[1], maps[1] + maps[4])
    assert group_gates(label)[0].tolist() == [0, 1, 0, 1, 1]


def test_groups_are_removed_as_one():
    rest, label = PartialForward(MODEL, IMAGES, LAYER), torch.tensor([0, 1, 0, 2, 2, 1])
    gate = torch.tensor([0.0, 1, 0, 1, 1, 1])
    expected = score(MODEL, IMAGES, TARGET) - score(MODEL, IMAGES, TARGET, logit_gate=gate)
    torch.testing.assert_close(ablate_groups(rest, TARGET, label)[:, 0], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("label", [[0, 1, 0, 2, 3, 2], [0, 1, 2, 3, 4, 5]])
def test_groups_of_one_are_not_removed_again(label):
    rest, label = PartialForward(MODEL, IMAGES, LAYER), torch.tensor(label)
    alone = by_ablation(MODEL, IMAGES, TARGET, LAYER)
    found = ablate_groups(rest, TARGET, label, alone=alone)
    torch.testing.assert_close(found, ablate_groups(rest, TARGET, label), atol=1e-5, rtol=1e-4)
    single = ~several(label)
    marked = ablate_groups(rest, TARGET, label, alone=torch.full_like(alone, 7.0))
    assert (marked[:, single] == 7).all()  # taken as given
    torch.testing.assert_close(marked[:, ~single], found[:, ~single])
