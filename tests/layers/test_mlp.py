import pytest
import torch
import torch.nn.functional as F

from vitreous.layers import mlp
from vitreous.layers.mlp import ConvMlp, strips


@pytest.mark.parametrize("shortcut", [False, True])
def test_equals_the_formula(shortcut: bool) -> None:
    layer = ConvMlp(6, 12, shortcut=shortcut).double()
    x = torch.randn(2, 5, 7, 6, dtype=torch.float64)
    u = layer.fc1(x).permute(0, 3, 1, 2)
    u = layer.depthwise(u) + (u if shortcut else 0)
    expected = layer.fc2(F.gelu(u.permute(0, 2, 3, 1)))
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("shape", [(3, 9, 5, 8), (1, 17, 4, 8), (5, 2, 3, 8), (4, 1, 1, 8)])
@pytest.mark.parametrize("budget", [1, 300, 1500, 10_000])
def test_strips_change_nothing(shape: tuple[int, ...], budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = ConvMlp(8, 16)
    x = torch.randn(shape)
    with torch.no_grad():
        monkeypatch.setattr(mlp, "STRIP_BYTES", 1 << 40)
        whole = layer(x)
        monkeypatch.setattr(mlp, "STRIP_BYTES", budget)
        torch.testing.assert_close(layer(x), whole)


def test_strips_cover_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlp, "STRIP_BYTES", 1000)
    for images, rows, row_bytes in ((1, 50, 90), (7, 3, 100), (2, 1, 5000), (3, 10, 333)):
        seen = torch.zeros(images, rows)
        for some, inner, halo in strips(images, rows, row_bytes):
            seen[some, inner] += 1
            assert halo.start >= 0
            assert halo.stop <= rows
        assert (seen == 1).all()
