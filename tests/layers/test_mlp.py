import pytest
import torch
import torch.nn.functional as F

from vitreous.layers import mlp, tiles
from vitreous.layers.mlp import ConvMlp


@pytest.mark.parametrize("shortcut", [False, True])
def test_equals_the_formula(shortcut: bool) -> None:
    layer = ConvMlp(6, 12, shortcut=shortcut).double()
    x = torch.randn(2, 5, 7, 6, dtype=torch.float64)
    u = layer.fc1(x).permute(0, 3, 1, 2)
    u = layer.depthwise(u) + (u if shortcut else 0)
    expected = layer.fc2(F.gelu(u.permute(0, 2, 3, 1)))
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("shape", [(3, 9, 5, 8), (1, 17, 4, 8), (5, 2, 3, 8), (4, 1, 1, 8), (1, 12, 40, 8)])
@pytest.mark.parametrize("budget", [1, 300, 1500, 10_000])
@pytest.mark.parametrize("depthwise", [False, True])
def test_tiles_change_nothing(
    shape: tuple[int, ...], budget: int, depthwise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = ConvMlp(8, 16, depthwise=depthwise)
    x = torch.randn(shape)
    with torch.no_grad():
        whole = layer(x)
        monkeypatch.setattr(mlp, "WORTH_TILES_BYTES", 0)
        monkeypatch.setattr(tiles, "MIN_POSITIONS", 1)
        monkeypatch.setattr(tiles, "TILE_BYTES", budget)
        torch.testing.assert_close(layer(x), whole)
