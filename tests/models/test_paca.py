"""PaCa's own truths: the layer re-derived in plain torch, options, and a block that never copies a layout."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.copies import Copies
from tests.support.families import assert_trains, small
from vitreous import record
from vitreous.clusters.gates import gated
from vitreous.errors import InputError
from vitreous.layers.cluster_training import ClusterTraining
from vitreous.models.paca import VARIANTS, PaCa

SHAPE = dict(dims=(16, 24, 32, 40), depths=(1, 1, 2, 1), heads=(2, 2, 4, 4), clusters=(5, 6, 7, 0), num_classes=3)


def test_attention_is_the_formula_of_the_paper() -> None:
    model = PaCa(**SHAPE).eval().double()
    block = model.stages[2].blocks[0]
    seen = {}
    block.attention.register_forward_hook(lambda _m, inputs, output: seen.update(x=inputs[0], out=output))
    with torch.no_grad(), record(model, "stages.2.*") as maps:
        model(torch.randn(2, 3, 64, 96, dtype=torch.float64))
    x = seen["x"].flatten(1, 2)  # (B, N, C)
    clustering = block.clustering
    y = clustering.depthwise(seen["x"].permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    logits = clustering.logits(F.gelu(clustering.pointwise(F.gelu(y)))).flatten(1, 2)
    z = logits.softmax(1).transpose(1, 2)  # (B, M, N)
    torch.testing.assert_close(maps["stages.2.clusters"].flatten(2), z)
    attention = block.attention
    tokens = attention.cluster_norm(torch.einsum("bmn,bnc->bmc", z, x))
    q, k, v = (f(t).unflatten(2, (4, 8)) for f, t in ((attention.q, x), (attention.k, tokens), (attention.v, tokens)))
    weights = torch.einsum("bnhd,bmhd->bhnm", q, k).div(8**0.5).softmax(-1)
    torch.testing.assert_close(maps["stages.2.blocks.0.attention.map"].flatten(3), weights.transpose(2, 3))
    out = attention.proj(torch.einsum("bhnm,bmhd->bnhd", weights, v).flatten(2))
    torch.testing.assert_close(seen["out"].flatten(1, 2), out)


@pytest.mark.parametrize(
    "options",
    [
        dict(norm="post"),
        dict(norm="sub"),
        dict(layer_scale=0.1),
        dict(cluster_position=True),
        dict(position_size=64),
        dict(mlp_depthwise=False),
        dict(stem_stride=2),
        dict(teacher=dict(depths=(1, 1, 2, 1)), clusters=(5, 0, 7, 3)),
        dict(teacher=dict(depths=(1, 1, 1, 1), dims=(16, 8, 8, 8))),
        dict(clustering="mlp", recluster=(0, 1, 2, 0)),
        dict(kernel_size=(3, 5, 7, 7)),
        dict(attention_dropout=0.1, dropout=0.1, drop_path_rate=0.2, drop_rate=0.1),
    ],
    ids=str,
)
def test_options_train_and_take_any_size(options: dict) -> None:
    assert_trains(PaCa(**{**SHAPE, **options}), [(64, 64), (70, 99)])


def test_learned_positions_reach_the_output() -> None:
    """A learned position changes the output, and stays out of weight decay."""
    model = PaCa(**SHAPE, position_size=64).eval()
    with torch.no_grad():
        for stage in model.stages:
            stage.position.zero_()
        image = torch.randn(1, 3, 64, 64)
        without = model(image)
        model.stages[0].position.normal_()
        assert not torch.allclose(model(image), without)
    assert "stages.0.position" in model.no_weight_decay()


def test_stochastic_depth_rises_to_its_rate() -> None:
    model = PaCa(**SHAPE, drop_path_rate=0.4)
    rates = [getattr(block.drop_path, "drop_prob", 0.0) for stage in model.stages for block in stage.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize("arguments", [dict(), dict(generation=1, recluster=1)], ids=["generation 2", "generation 1"])
def test_no_layout_copy_within_a_stage(arguments: dict) -> None:
    model = PaCa(**{**SHAPE, **arguments}).eval()
    tokens = torch.randn(2, 12, 16, 24)
    with torch.no_grad(), Copies() as copies:
        model.stages[2](tokens)
    assert {"convolution", "native_layer_norm", "addmm", "gelu"} <= copies.seen
    assert not copies.found, copies.found


def test_the_check_for_copies_can_fail() -> None:
    with Copies() as copies:
        torch.randn(1, 4, 4, 8).permute(0, 3, 1, 2).contiguous()
        F.conv2d(torch.randn(1, 3, 4, 4), torch.randn(2, 3, 1, 1))
    assert len(copies.found) == 2


def test_initial_values_are_those_of_the_paper() -> None:
    """Linear layers 0.02; convolutions, and what stands for 1x1 ones in the clustering, sqrt(2 / fan-out)."""
    model = PaCa((96, 192, 320, 384), (1, 1, 1, 1), (2, 4, 8, 16), (100, 100, 100, 0))
    block = model.stages[1].blocks[0]
    for weight, std in (
        (block.attention.q.weight, 0.02),
        (block.mlp.fc1.weight, 0.02),
        (model.head.weight, 0.02),
        (block.mlp.depthwise.weight, (2 / 9) ** 0.5),
        (block.clustering.depthwise.weight, (2 / 49) ** 0.5),
        (block.clustering.pointwise.weight, (2 / 192) ** 0.5),
        (block.clustering.logits.weight, (2 / 100) ** 0.5),
        (model.stages[1].downsample.conv.weight, (2 / (9 * 192)) ** 0.5),
    ):
        # The standard error of a standard deviation from n values is about 1 / sqrt(2 n).
        assert weight.std().item() == pytest.approx(std, rel=5 / (2 * weight.numel()) ** 0.5)
        assert abs(weight.mean().item()) < 5 * std / weight.numel() ** 0.5


class Noted(ClusterTraining):
    """Keeps what it dropped."""

    def kept(self, assignment: torch.Tensor) -> torch.Tensor | None:
        gate = super().kept(assignment)
        self.__dict__.setdefault("gates", []).append(gate)
        return gate


@pytest.mark.parametrize("options", [{}, dict(teacher=dict(depths=(1, 1, 1, 1))), dict(norm="post")], ids=str)
def test_a_cluster_dropped_in_training_is_removed_as_an_explanation_removes_it(options: dict) -> None:
    """In all blocks of its stage, to the bit; only a teacher's batch norms differ, so they are kept from learning."""
    torch.manual_seed(0)
    model = PaCa(**{**SHAPE, **options}).train()
    if model.teacher is not None:
        model.teacher.eval()
    images, learning = torch.randn(3, 3, 64, 64), Noted(dropout=0.5, group_dropout=0.5)
    for stage in model.stages:
        stage.cluster_training = learning
    with torch.no_grad():
        dropped = model(images)
        assert [gate.shape for gate in learning.gates] == [(3, 5), (3, 6), (3, 7)]
        assert all(gate.min() == 0 for gate in learning.gates)
        model.eval()
        first, second, third = learning.gates
        with gated(model, 1, logit_gate=first), gated(model, 2, logit_gate=second), gated(model, 3, logit_gate=third):
            assert torch.equal(model(images), dropped)
        assert not torch.equal(model(images), dropped)  # and inference knows nothing of it
    assert len(learning.gates) == 3


def test_blocks_that_cluster_anew_drop_anew() -> None:
    torch.manual_seed(0)
    model = PaCa(**{**SHAPE, "recluster": 1}).train()
    learning = Noted(dropout=0.5)
    model.stages[2].cluster_training = learning
    model(torch.randn(2, 3, 64, 64))
    assert len(learning.gates) == 2
    assert not torch.equal(*learning.gates)


EACH_KIND = [name for name in VARIANTS if name.startswith(("paca_tiny", "paca_small_c", "paca_b0"))]


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in EACH_KIND if "pure" not in name])
def test_one_pattern_takes_the_assignments_of_every_variant(name: str) -> None:
    """Whether a stage makes one, several, or is given it by a teacher."""
    model = small(name, 2).eval()
    side = 8 * model.strides[0]
    with record(model, "stages.*.clusters") as maps:
        model(torch.randn(1, 3, side, side))
    counts = VARIANTS[name]["clusters"]
    seen = {(int(path.split(".")[1]), value.shape[1]) for path, value in maps.items()}
    assert seen == {(stage, count) for stage, count in enumerate(counts) if count}
    makers = sum(block.clustering is not None for stage in model.stages for block in stage.blocks)
    assert len(maps) == (makers or sum(count > 0 for count in counts))
    for path, value in maps.items():
        torch.testing.assert_close(value.sum((2, 3)), torch.ones(value.shape[:2]), msg=path)


@pytest.mark.parametrize("name", [name for name in EACH_KIND if "pure" in name])
def test_without_clusters_the_taps_there_are_named(name: str) -> None:
    model = small(name, 1)
    with pytest.raises(InputError, match=r"no tap matches 'stages.\*.clusters'; PaCa has: stages.0.blocks.0.att"):
        with record(model, "stages.*.clusters"):
            pass
