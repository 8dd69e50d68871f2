import copy

import pytest
import torch

from vitreous import record, tap_names
from vitreous.errors import InputError
from vitreous.layers.tap import Tap
from vitreous.models.paca import PaCa


@pytest.fixture(scope="module")
def model() -> PaCa:
    torch.manual_seed(0)
    shape = dict(dims=(16, 24, 32, 40), depths=(1, 2, 2, 1), heads=(2, 2, 4, 4), clusters=(5, 6, 7, 0))
    return PaCa(**shape, recluster=(0, 1, 0, 0), num_classes=3).eval()


def test_maps_are_picture_shaped_and_sum_to_one(model: PaCa) -> None:
    with torch.no_grad(), record(model) as maps:
        model(torch.randn(2, 3, 70, 99))
    assert maps["stages.0.clusters"].shape == (2, 5, 18, 25)
    assert maps["stages.1.clusters.0"].shape == maps["stages.1.clusters.1"].shape == (2, 6, 9, 13)
    assert maps["stages.2.blocks.1.attention.map"].shape == (2, 4, 7, 5, 7)
    assert maps["stages.1.output"].shape == (2, 24, 9, 13)
    for name, value in maps.items():
        if name.endswith("output"):
            continue  # features, not weights
        total = value.sum(2) if name.endswith("map") else value.sum((2, 3))
        torch.testing.assert_close(total, torch.ones_like(total), msg=f"{name} does not sum to one")


def test_recorded_and_unrecorded_outputs_agree(model: PaCa) -> None:
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        plain = model(images)
        with record(model):
            recorded = model(images)
    torch.testing.assert_close(plain, recorded, rtol=1e-5, atol=1e-5)


def test_nothing_is_left_behind_even_after_an_error(model: PaCa) -> None:
    state = set(model.state_dict())
    with pytest.raises(RuntimeError), record(model, "stages.2.*"):
        raise RuntimeError("inside the block")
    taps = [module for module in model.modules() if isinstance(module, Tap)]
    assert not any(tap.listening or tap._forward_hooks for tap in taps)
    assert set(model.state_dict()) == state
    assert not any("map" in key for key in state)


def test_only_the_chosen_taps_listen(model: PaCa) -> None:
    with torch.no_grad(), record(model, "stages.*.clusters", "stages.3.blocks.*") as maps:
        model(torch.randn(1, 3, 64, 64))
    assigned = {"stages.0.clusters", "stages.1.clusters.0", "stages.1.clusters.1", "stages.2.clusters"}
    assert set(maps) == {*assigned, "stages.3.blocks.0.attention.map"}
    with torch.no_grad(), record(model, "stages.1.clusters.1") as maps:
        model(torch.randn(1, 3, 64, 64))
    assert set(maps) == {"stages.1.clusters.1"}


def test_blocks_may_be_nested(model: PaCa) -> None:
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad(), record(model, "stages.0.clusters") as outer:
        with record(model, "stages.0.*") as inner:
            model(images)
        model(images * 2)
    assert not torch.equal(outer["stages.0.clusters"], inner["stages.0.clusters"])


def test_gradients_reach_recorded_maps(model: PaCa) -> None:
    with record(model, "stages.2.clusters") as maps:
        loss = model(torch.randn(1, 3, 64, 64)).sum()
    (gradient,) = torch.autograd.grad(loss, maps["stages.2.clusters"])
    assert gradient.abs().sum() > 0


def test_unknown_pattern_lists_the_taps(model: PaCa) -> None:
    with pytest.raises(InputError, match=r"no tap matches 'stages.9.\*'; PaCa has: .*stages.0.clusters"):
        with record(model, "stages.9.*"):
            pass
    with pytest.raises(InputError, match="no taps"), record(torch.nn.Linear(1, 1), "x"):
        pass


def test_reused_assignments_are_the_ones_of_the_last_making_block() -> None:
    """With recluster=2 blocks 0 and 2 make clusters; blocks 1 and 3 attend over those, from their own inputs."""
    model = PaCa((16, 16, 16, 16), (1, 1, 4, 1), (2, 2, 2, 2), (3, 3, 3, 0), recluster=2, num_classes=3).eval()
    assert [name for name in tap_names(model) if "stages.2.clusters" in name] == [
        "stages.2.clusters.0",
        "stages.2.clusters.2",
    ]
    seen = {}
    for j, block in enumerate(model.stages[2].blocks):
        block.attention.register_forward_hook(lambda _m, inputs, _o, j=j: seen.__setitem__(j, inputs[1]))
    with torch.no_grad(), record(model, "stages.2.clusters.*") as maps:
        model(torch.randn(1, 3, 64, 64))
    for block, maker in {0: 0, 1: 0, 2: 2, 3: 2}.items():
        assert torch.equal(seen[block], maps[f"stages.2.clusters.{maker}"])


def test_copies_keep_their_own_taps(model: PaCa) -> None:
    twin = copy.deepcopy(model)
    with torch.no_grad(), record(model, "stages.0.clusters") as maps:
        twin(torch.randn(1, 3, 64, 64))
    assert not maps


def test_attention_is_fused_unless_a_tap_listens(model: PaCa, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *args, **kwargs: (calls.append(1), fused(*args, **kwargs))[1],
    )
    images, blocks = torch.randn(1, 3, 64, 64), sum(len(stage.blocks) for stage in model.stages)
    with torch.no_grad():
        model(images)
        assert len(calls) == blocks
        with record(model, "stages.*.clusters*"):  # cluster maps cost nothing extra
            model(images)
        assert len(calls) == 2 * blocks
        with record(model, "stages.3.blocks.0.attention.map"):
            model(images)
        assert len(calls) == 3 * blocks - 1
