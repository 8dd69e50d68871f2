"""A logit is its bias and what the clusters contribute: exactly, from one pass. Closing a cluster costs its part."""

import pytest
import torch

from tests.support.explained_models import counting, family, pictures
from vitreous.attribution.catalogue import find_method, methods_for
from vitreous.attribution.target import ClassTarget
from vitreous.clusters.contributions import contributions
from vitreous.clusters.gates import PartialForward, cluster_layer, gated
from vitreous.clusters.importance import RANKINGS, removal_curve
from vitreous.clusters.load import attention_off, causal_load
from vitreous.errors import InputError
from vitreous.layers.tap import record

IMAGES = pictures(3, 64, 48)
LABELS = torch.tensor([0, 3, 4])
TARGET = ClassTarget(labels=LABELS)
READS = dict(readout="clusters", readout_clusters=5)
KINDS = [
    READS,
    dict(READS, readout_stages=3),
    dict(READS, readout_stages=(2, 4)),
    dict(READS, generation=1, clusters=(0, 0, 0, 0)),
    dict(READS, teacher=dict(depths=(1, 1, 1, 1)), clusters=(6, 6, 6, 6)),
]
EXACT = dict(atol=1e-5, rtol=1e-5)  # float32


def reading(**changes):
    return family(**{**READS, **changes})


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_every_logit_is_the_sum_of_contributions_and_each_has_a_map(changes):
    model = family(**changes)
    layers = [
        cluster_layer(model, number)
        for number in range(len(model.stages) + 1, len(model.stages) + 1 + len(model.readout))
    ]
    found = [contributions(model, IMAGES, layer) for layer in layers]
    with torch.no_grad():
        logits = model(IMAGES)
    assert logits.std() > 0.1  # there is something to explain
    assert all(one.values.shape == (3, 5, 5) for one in found)
    torch.testing.assert_close(found[0].bias + sum(one.values.sum(2) for one in found), logits, **EXACT)
    for one in found:
        torch.testing.assert_close(one.bias + one.others + one.values.sum(2), logits, **EXACT)
        torch.testing.assert_close(one.maps(LABELS).sum((2, 3)), one.of(LABELS), **EXACT)
        assert one.maps(LABELS).shape == one.shares.shape
        torch.testing.assert_close(one.shares.sum((1, 2, 3)), torch.ones(3), **EXACT)
    assert cluster_layer(model) == layers[-1]  # what the classifier reads is explained unless asked otherwise


def test_the_formula_again():
    model = reading()
    with torch.no_grad(), record(model, "readout.*", "stages.3.output") as seen:
        logits = model(IMAGES)
    x = seen["stages.3.output"].flatten(2).transpose(1, 2)  # (B, N, C)
    head, readout = model.head, model.readout["3"]
    with torch.no_grad():
        hidden = torch.nn.functional.gelu(x @ readout.clustering.fc1.weight.T + readout.clustering.fc1.bias)
        z = (hidden @ readout.clustering.logits.weight.T + readout.clustering.logits.bias).softmax(1).transpose(1, 2)
        torch.testing.assert_close(seen["readout.3.clusters"].flatten(2), z)
        c = z @ x
        a = (c @ readout.attention.score.weight.T).softmax(1)  # (B, M, 1)
        torch.testing.assert_close(head.bias + (a * c @ head.weight.T).sum(1), logits, **EXACT)
        torch.testing.assert_close(seen["readout.3.attention.map"][:, 0].flatten(2), a * z)


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_closing_the_value_gate_of_a_cluster_costs_exactly_its_contribution(changes):
    model = family(**changes)
    found = contributions(model, IMAGES)
    for m in range(5):
        with torch.no_grad(), gated(model, value_gate=(torch.arange(5) != m).float()):
            torch.testing.assert_close(found.logits - model(IMAGES), found.values[:, :, m], **EXACT)
    rest = PartialForward(model, IMAGES, found.layer)
    with torch.no_grad():
        lost = found.logits - rest.without(torch.arange(3), torch.tensor([1.0, 0, 1, 0, 1]).expand(3, -1))
    torch.testing.assert_close(lost, found.values[:, :, 1] + found.values[:, :, 3], **EXACT)


def test_with_all_clusters_closed_only_the_bias_is_left():
    model = reading()
    model.head.bias.data.normal_()
    with torch.no_grad(), gated(model, value_gate=torch.zeros(5)):
        torch.testing.assert_close(model(IMAGES), model.head.bias.expand(3, -1))
    with torch.no_grad(), attention_off(model, 5):
        torch.testing.assert_close(model(IMAGES), model.head.bias.expand(3, -1))
    loads = {load.stage: load for load in causal_load(model, IMAGES, TARGET)}
    assert list(loads) == [1, 2, 3, 5]
    bias = TARGET(model.head.bias.expand(3, -1))
    torch.testing.assert_close(loads[5].scores["attention_off"], bias)
    assert loads[5].carries.tolist() == ((loads[5].before - bias).abs() >= 0.1).tolist()
    assert {"uniform", "attention_off", "all but 1", "all but 4"} == set(loads[5].scores)


def test_one_pass_is_enough():
    model = reading()
    calls, end = counting(model.stem)
    contributions(model, IMAGES)
    find_method("contributions", model)(model, IMAGES, TARGET)
    RANKINGS["contribution"](model, IMAGES, TARGET, cluster_layer(model))
    end()
    assert calls == [3, 3, 3]


@pytest.mark.parametrize("name", [name for name in RANKINGS if name != "random"])
def test_every_ranking_knows_the_readout(name):
    model = reading()
    layer = cluster_layer(model)
    values = RANKINGS[name](model, IMAGES, TARGET, layer)
    assert values.shape == (3, 5)
    assert values.isfinite().all()
    rest = PartialForward(model, IMAGES, layer)
    assert removal_curve(rest, TARGET, values, (1, 2)).shape == (3, 2)
    if name == "attention_mass":
        with torch.no_grad(), record(model, "readout.*") as seen:
            model(IMAGES)
        torch.testing.assert_close(values, seen["readout.3.attention.map"][:, 0].sum((2, 3)))


def test_integrated_log_odds_are_what_the_clusters_do_together():
    model = reading()
    layer = cluster_layer(model)
    total = RANKINGS["integrated"](model, IMAGES, TARGET, layer, steps=64).sum(1)
    with torch.no_grad():
        expected = TARGET(model(IMAGES)) - TARGET(model.head.bias.expand(3, -1))
    torch.testing.assert_close(total, expected, atol=2e-3, rtol=2e-3)  # the rule of midpoints, 64 of them


def test_what_comes_before_the_readout_runs_once():
    model = reading()
    calls, end = counting(model.stages[3].blocks[0].mlp)
    rest = PartialForward(model, IMAGES, cluster_layer(model))
    rest.scores(TARGET, 1 - torch.eye(5))
    again = contributions(model, IMAGES, rest=rest)
    end()
    assert calls == [3]
    torch.testing.assert_close(again.values, contributions(model, IMAGES).values, **EXACT)


def test_methods_fit_a_readout():
    model = reading()
    names = [method.name for method in methods_for(model)]
    assert names[0] == "contributions"
    assert "grad_cam stage 3" not in names  # the clusters are on the last grid
    for name in ("contributions", "token_gradient", "rollout", "cluster_group", "clusters attention_mass"):
        heat = find_method(name, model)(model, IMAGES, TARGET)
        assert heat.isfinite().all()
    heat = find_method("contributions", model)(model, IMAGES, TARGET)
    with torch.no_grad():
        logit = model(IMAGES)[torch.arange(3), LABELS] - model.head.bias[LABELS]
    torch.testing.assert_close(heat.sum((1, 2)), logit, **EXACT)


def test_models_and_layers_without_a_readout_are_refused():
    with pytest.raises(InputError, match="does not read clusters; train a PaCa model with readout=clusters"):
        contributions(family(), IMAGES)
    with pytest.raises(InputError, match="does not read clusters"):
        find_method("contributions", family())
    model = reading()
    with pytest.raises(InputError, match="stage 3 contributes to the logits through other layers"):
        contributions(model, IMAGES, cluster_layer(model, 3))
    with pytest.raises(InputError, match=r"stages with clusters: 1, 2, 3, 5 \(the readout\)"):
        cluster_layer(model, 4)
    with pytest.raises(InputError, match="readout, which has no blocks"):
        cluster_layer(model, 5, 1)
    model.reset_classifier(0)
    with pytest.raises(InputError, match="no classifier"):
        contributions(model, IMAGES)
