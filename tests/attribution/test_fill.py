"""What stands where a part of an image is hidden."""

import pytest
import torch

from vitreous.attribution import fill


@pytest.mark.parametrize("shape", [(2, 3, 40, 61), (1, 1, 300, 7)])
@pytest.mark.parametrize("deviation", [1.0, 9.5, 60.0])
def test_wide_blurs_by_fourier_transforms_are_those_by_convolution(monkeypatch, shape, deviation):
    images = torch.randn(shape)
    monkeypatch.setattr(fill, "WIDEST_BY_CONVOLUTION", 1000)
    expected = fill.blurred(images, deviation)
    monkeypatch.setattr(fill, "WIDEST_BY_CONVOLUTION", 0)
    torch.testing.assert_close(fill.blurred(images, deviation), expected, rtol=1e-5, atol=1e-5)
    flat = torch.full(shape, 0.3)
    torch.testing.assert_close(fill.blurred(flat, deviation), flat, rtol=1e-5, atol=1e-5)
