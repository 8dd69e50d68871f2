"""Images apart from each other, and maps in tiles: the same numbers as all at once, for every family."""

from collections.abc import Iterator

import pytest
import timm
import torch
from torch import Tensor, nn

from vitreous.layers import mlp, tiles
from vitreous.layers.tap import record
from vitreous.models import base
from vitreous.models.paca import PaCa, PaCaBlock

ROWS = dict(dims=(16, 24), depths=(2, 2), heads=(2, 2), mlp_ratios=(4, 4), stem_stride=2, num_classes=5)
KINDS = {
    "conv": dict(clusters=(6, 0)),
    "every block": dict(clusters=(6, 5), recluster=1),
    "mlp": dict(clusters=(6, 5), clustering="mlp", norm="sub", layer_scale=0.5),
    "linear": dict(clusters=(6, 5), clustering="linear", cluster_temperature=0.5, cluster_position=True),
    "generation 1": dict(clusters=(6, 5), generation=1),
    "no convolution": dict(clusters=(6, 5), mlp_depthwise=False, norm="post"),
    "teacher": dict(clusters=(6, 5), teacher=dict(depths=(1, 1))),
    "readout": dict(clusters=(6, 5), readout="clusters", readout_clusters=3),
    "closed": dict(clusters=(6, 0), closed_clusters={"stages.0.blocks.1.attention": [0, 2]}),
}
FAMILIES = ("paca_b0", "xcit_nano_12_p16", "emsnet_xxtiny", "mat_1", "partialformer_b0")


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiles of a few positions, and two threads."""
    for module, name, value in (
        (mlp, "WORTH_TILES_BYTES", 0),
        (tiles, "TILE_BYTES", 4000),
        (tiles, "MIN_POSITIONS", 1),
        (tiles, "STRIP_BYTES", 1),
        (base, "PIXELS_TOGETHER", 1),
    ):
        monkeypatch.setattr(module, name, value)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def paca(kind: str) -> PaCa:
    torch.manual_seed(0)
    model = PaCa(**ROWS | KINDS[kind]).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # clusters that start alike would hide a wrong softmax
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def in_order(model: nn.Module, images: Tensor) -> list[Tensor]:
    """With gradients nothing is divided."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    features = model.features(images)
    found = [*(part.detach() for part in features.maps), features.pooled.detach(), model(images).detach()]
    torch.set_num_threads(threads)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_paca_is_the_same_in_tiles(kind: str, divided: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, tiled = paca(kind), torch.randn(3, 3, 45, 38), []
    expected = in_order(model, images)
    whole = PaCaBlock.in_tiles
    monkeypatch.setattr(PaCaBlock, "in_tiles", lambda self, *given: tiled.append(self) or whole(self, *given))
    with torch.inference_mode():
        features = model.features(images)
        found = [*features.maps, features.pooled, model(images)]
    assert {*tiled} == {block for stage in model.stages for block in stage.blocks}
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_the_same_divided(name: str, divided: None) -> None:
    torch.manual_seed(0)
    model, images = timm.create_model(name).eval(), torch.randn(3, 3, 75, 66)
    expected = in_order(model, images)
    with torch.inference_mode():
        features = model.features(images)
        found = [*features.maps, features.pooled, model(images)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_extreme_logits_add_up_without_overflow(divided: None) -> None:
    model, images = paca("linear"), torch.randn(1, 3, 45, 38)
    with torch.no_grad():
        model.stages[0].blocks[0].clustering.logits.weight.mul_(300)
    expected = in_order(model, images)
    with torch.inference_mode():
        found = model(images)
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected[-1], rtol=1e-4, atol=1e-5)


def test_taps_and_hooks_see_whole_maps_of_the_whole_batch(divided: None) -> None:
    model, images, seen = paca("conv"), torch.randn(3, 3, 45, 38), []
    with torch.inference_mode(), record(model, "stages.0.clusters", "stages.0.output") as maps:
        model(images)
    assert maps["stages.0.clusters"].shape == (3, 6, 23, 19)
    torch.testing.assert_close(maps["stages.0.clusters"].sum((2, 3)), torch.ones(3, 6))
    assert maps["stages.0.output"].shape == (3, 16, 23, 19)
    model.stages[1].blocks[0].mlp.fc1.register_forward_hook(lambda _layer, _inputs, output: seen.append(output.shape))
    with torch.inference_mode():
        model(images)
    assert seen == [(3, 12, 10, 96)]


def test_a_model_in_training_is_not_divided(divided: None) -> None:
    """Its statistics and random numbers are those of the whole batch."""
    model = timm.create_model("emsnet_xxtiny").train()
    with torch.no_grad():
        assert not model.worth_threads(torch.randn(4, 3, 64, 64))
        assert model.eval().worth_threads(torch.randn(4, 3, 64, 64))


def test_gates_of_single_images_stay_with_them(divided: None) -> None:
    from vitreous.layers.attention import Gates

    model, images = paca("conv"), torch.randn(2, 3, 45, 38)
    attention = model.stages[0].blocks[0].attention
    attention.gates = Gates(logit=torch.tensor([[1.0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1.0]]))
    expected = in_order(model, images)
    with torch.inference_mode():
        torch.testing.assert_close(model(images), expected[-1], rtol=1e-4, atol=1e-5)
