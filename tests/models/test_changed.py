"""Families that other libraries make or change: filled after creation on the meta device, watched by hooks."""

import pytest
import torch
from torch import Tensor, nn

from tests.support.families import FAMILIES, assert_whole, awake, small

CASES = [
    *((name, {}) for name in FAMILIES),
    ("paca_tiny_mlp_blockwise", {}),
    ("paca_tiny_linear", {}),
    ("emsnet_xxtiny", dict(whitening="pixel")),
    ("mat_1", dict(mixers=("none", "window", "mat", "mat"), embed="merge")),
    ("partialformer_b0", dict(project="needed")),
]


def check_input(path: str, layer: nn.Module, x: Tensor) -> None:
    if isinstance(layer, nn.Linear):
        assert x.shape[-1] == layer.in_features, path
    else:
        channels = layer.in_channels if isinstance(layer, nn.Conv2d) else layer.num_features
        assert x.ndim == 4, path
        assert x.shape[1] == channels, path


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
@torch.no_grad()
def test_every_layer_can_be_watched(name: str, options: dict) -> None:
    model = awake(small(name, 1, **options)).eval()
    images = torch.randn(2, 3, 192, 160)  # so large that XCiT's maps have more positions than twice their channels
    expected = model(images)
    layers = {path: m for path, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.BatchNorm2d)}
    seen: list[str] = []
    for path, layer in layers.items():

        def watch(layer: nn.Module, inputs: tuple, path: str = path) -> None:
            seen.append(path)
            check_input(path, layer, inputs[0])

        layer.register_forward_pre_hook(watch)
    torch.testing.assert_close(model(images), expected, rtol=1e-3, atol=1e-4)
    assert sorted(seen) == sorted(layers)


IMAGES = torch.randn(2, 3, 96, 160)
KINDS = (*FAMILIES, "paca_small_mlp", "paca_tiny_blockwise", "paca_tiny_linear")


@torch.no_grad()
@pytest.mark.parametrize("name", KINDS)
def test_filled_models_are_the_same(name: str) -> None:
    model = awake(small(name, 1)).eval()
    expected, state = model(IMAGES), model.state_dict()
    with torch.device("meta"):
        assigned, copied = small(name, 1).eval(), small(name, 1).eval()
    assert_whole(assigned)
    assigned.load_state_dict(state, assign=True)
    assert torch.equal(assigned(IMAGES), expected)
    copied.to_empty(device="cpu")
    for tensor in (*copied.parameters(), *copied.buffers()):
        tensor.fill_(torch.nan if tensor.is_floating_point() else -1)
    copied.load_state_dict(state)
    assert torch.equal(copied(IMAGES), expected)
