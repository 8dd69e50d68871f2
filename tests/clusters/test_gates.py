"""Removing clusters is exact, costs only the rest of the network, and leaves nothing behind."""

import pytest
import torch

from tests.support.explained_models import counting, entering, family, pictures
from vitreous.attribution.target import ClassTarget
from vitreous.clusters.gates import PartialForward, cluster_layer, gated, users, without
from vitreous.errors import InputError
from vitreous.layers.tap import record

IMAGES = pictures(3, 64, 48)
TARGET = ClassTarget(labels=torch.tensor([0, 3, 4]))
TEACHER = dict(teacher=dict(depths=(1, 1, 1, 1)))


def test_a_removed_cluster_is_as_if_it_had_never_been():
    """The attention of one block, derived again from the other clusters' tokens only."""
    model = family()
    path = "stages.2.blocks.0.attention"
    (x, z) = entering(model, path, IMAGES)
    layer, patches = model.get_submodule(path), x.flatten(1, 2)
    left = [0, 1, 3, 5]
    with torch.no_grad():
        tokens = layer.cluster_norm(z[:, left].flatten(2) @ patches)
        q, k, v = (
            part.unflatten(-1, (3, -1)).transpose(1, 2) for part in (layer.q(patches), layer.k(tokens), layer.v(tokens))
        )
        out = (q @ k.transpose(-2, -1) / 8**0.5).softmax(-1) @ v
        expected = layer.proj(out.transpose(1, 2).flatten(2)).view_as(x)
        with gated(model, 3, logit_gate=without([2, 4], 6)):
            torch.testing.assert_close(layer(x, z), expected, atol=1e-5, rtol=1e-4)


def test_open_gates_change_nothing_and_none_is_left():
    model = family()
    with torch.no_grad():
        plain = model(IMAGES)
        with gated(model, 3, logit_gate=torch.ones(6), value_gate=torch.ones(6)):
            torch.testing.assert_close(model(IMAGES), plain, atol=1e-5, rtol=1e-5)
        with pytest.raises(RuntimeError), gated(model, 3, logit_gate=torch.ones(6)):
            raise RuntimeError
        assert torch.equal(model(IMAGES), plain)
    assert all(block.attention.gates is None for stage in model.stages for block in stage.blocks)


def test_gated_attention_is_the_same_with_and_without_a_listener():
    model = family()
    gate = torch.rand(3, 6)
    with torch.no_grad(), gated(model, 2, logit_gate=gate, value_gate=gate.flip(1)):
        plain = model(IMAGES)
        with record(model, "stages.1.*"):
            torch.testing.assert_close(model(IMAGES), plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("changes", [{}, dict(recluster=1), TEACHER, dict(norm="post")], ids=str)
def test_the_rest_of_the_network_gives_what_the_whole_does(changes, stage):
    model = family("paca_tiny_teacher" if changes is TEACHER else "paca_tiny", **changes)
    layer = cluster_layer(model, stage)
    rest = PartialForward(model, IMAGES, layer)
    gates = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)).round()
    gates[:, 1] = 1
    whole = []
    with torch.no_grad():
        for gate in gates:
            with gated(model, layer, logit_gate=gate):
                whole.append(TARGET(model(IMAGES)))
        assert torch.equal(rest.output, model(IMAGES))
    torch.testing.assert_close(rest.scores(TARGET, gates), torch.stack(whole, 1), atol=1e-5, rtol=1e-4)
    single = rest.scores(TARGET, gates, batch_size=1)
    torch.testing.assert_close(rest.scores(TARGET, gates), single, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("changes", [{}, TEACHER], ids=str)
def test_several_threads_give_what_one_does(monkeypatch, changes):
    """Copies of the model are gated, which share its weights; the model itself is not touched."""
    model = family("paca_tiny_teacher" if changes is TEACHER else "paca_tiny", **changes)
    rest, gates = PartialForward(model, IMAGES, cluster_layer(model)), 1 - torch.eye(6)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = rest.scores(TARGET, gates, batch_size=2)
        torch.set_num_threads(2)
        monkeypatch.setattr("vitreous.clusters.gates.MANY_PIXELS", 0)
        parts = rest.parts(TARGET, gates, batch_size=2)
        first = next(parts)
        assert all(block.attention.gates is None for block in model.stages[2].blocks)
        with torch.no_grad():
            torch.testing.assert_close(model(IMAGES), rest.output, atol=1e-5, rtol=1e-5)
        together = torch.cat([first, *parts]).view_as(alone)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together, alone)
    twin = rest.twin().model
    assert all(a is b for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert not set(model.modules()) & set(twin.modules())


def test_what_comes_before_runs_once():
    model = family()
    watched = {
        "stem": model.stem.conv1,
        "stage 2": model.stages[1].blocks[0].mlp,
        "stage 3": model.stages[2].blocks[0].mlp,
    }
    calls = {name: counting(module) for name, module in watched.items()}
    rest = PartialForward(model, IMAGES, cluster_layer(model, 3))
    rest.scores(TARGET, 1 - torch.eye(6))
    for _list, end in calls.values():
        end()
    assert {name: sum(seen) for name, (seen, _end) in calls.items()} == {"stem": 3, "stage 2": 3, "stage 3": 3 + 18}


def test_clusters_are_gated_in_the_blocks_that_use_them():
    blockwise = family(recluster=1)
    assert users(blockwise, cluster_layer(blockwise, 3, 1)) == [0]
    assert users(blockwise, cluster_layer(blockwise, 3)) == [1]
    assert users(family(), cluster_layer(family(), 3)) == [0, 1]


def test_removing_every_cluster_is_refused():
    model = family()
    with pytest.raises(InputError, match="keep at least one"), gated(model, 3, logit_gate=torch.zeros(6)):
        pass
    both = torch.stack([torch.ones(6), torch.zeros(6)])
    with pytest.raises(InputError, match="keep at least one"):
        PartialForward(model, IMAGES[:1], cluster_layer(model)).scores(TARGET, both)


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        (torch.ones(5), r"takes \(6,\)"),
        (torch.ones(1, 2, 6), r"takes \(6,\)"),
        (-torch.ones(6), "negative"),
        (torch.tensor([1, 1, 1, 1, 1, torch.nan]), "negative number or NaN"),
    ],
)
def test_gates_that_make_no_sense_are_refused(gate, message):
    with pytest.raises(InputError, match=message), gated(family(), 3, logit_gate=gate):
        pass


def test_clusters_that_do_not_exist_are_refused():
    assert without([1, 3], 4).tolist() == [1, 0, 1, 0]
    with pytest.raises(InputError, match="clusters 0 to 5"):
        without([6], 6)
    with pytest.raises(InputError, match="stages with clusters: 1, 2, 3"), gated(family(), 4, logit_gate=torch.ones(6)):
        pass
    with pytest.raises(InputError, match="has no clusters to explain"):
        cluster_layer(family("mat_1"))
