"""Every layer of every family can be watched: it is called, once, with what its class takes."""

import pytest
import torch
from torch import Tensor, nn

from tests.support.families import FAMILIES, awake, small

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
