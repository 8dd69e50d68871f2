"""Linear layers and GELU by oneDNN: the same numbers, and only where nobody would notice."""

import copy

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext
from torch.utils.flop_counter import FlopCounterMode

import vitreous.layers.inference as inference
from vitreous.layers.inference import depthwise_gelu, linear, onednn_is_for, product

LAYER = nn.Linear(128, 256)
TOKENS = torch.randn(2, 30, 20, 128, generator=torch.Generator().manual_seed(0))  # more than LEAST_PRODUCT together


@pytest.fixture
def calls(monkeypatch):
    """What oneDNN is asked for, on any processor that has it."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    seen = []

    def noted(original):
        return lambda *given, **named: seen.append(original.__name__) or original(*given, **named)

    monkeypatch.setattr(inference, "onednn_is_faster", lambda: True)
    for name in ("onednn_product", "onednn_depthwise"):
        monkeypatch.setattr(inference, name, noted(getattr(inference, name)))
    return seen


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gives_what_the_layer_gives(calls, gelu, bias):
    layer = nn.Linear(128, 256, bias=bias)
    layer.weight = nn.Parameter(torch.randn(128, 256).t() / 10)
    for x in (TOKENS, TOKENS.transpose(1, 2), TOKENS[:, ::2].repeat(1, 2, 1, 1), TOKENS[:1, :1].expand(2, 30, -1, -1)):
        with torch.no_grad():
            expected = F.gelu(layer(x)) if gelu else layer(x)
            torch.testing.assert_close(linear(layer, x, gelu=gelu), expected, rtol=1e-5, atol=1e-5)
    assert len(calls) == 4
    with torch.no_grad():
        torch.testing.assert_close(product(TOKENS, layer.weight, layer.bias), layer(TOKENS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_depthwise_convolution_with_gelu(calls, bias):
    conv = nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=bias)
    images = torch.randn(2, 24, 9, 7).to(memory_format=torch.channels_last)
    with torch.no_grad():
        found = depthwise_gelu(images, conv.weight, conv.bias)
        torch.testing.assert_close(found, F.gelu(conv(images)), rtol=1e-5, atol=1e-5)
        assert found.is_contiguous(memory_format=torch.channels_last)
    assert calls == ["onednn_depthwise"]
    torch.testing.assert_close(depthwise_gelu(images, conv.weight, conv.bias), F.gelu(conv(images)))  # with gradients


def test_steps_back_where_others_look_or_other_numbers_are_asked_for(calls):
    assert not onednn_is_for(TOKENS)  # gradients may be asked for
    linear(LAYER, TOKENS).sum().backward()
    hooked = copy.deepcopy(LAYER)
    hooked.register_forward_hook(lambda *_: None)
    with torch.no_grad():
        assert onednn_is_for(TOKENS)
        linear(hooked, TOKENS)
        linear(LAYER.double(), TOKENS.double())
        LAYER.float()
        with torch.autocast("cpu", torch.bfloat16):
            assert linear(LAYER, TOKENS).dtype == torch.bfloat16
        with FlopCounterMode(display=False) as counter:
            linear(LAYER, TOKENS)
        assert counter.get_total_flops() == 2 * TOKENS.numel() * 256
        assert torch.vmap(lambda x: linear(LAYER, x))(TOKENS).shape == (2, 30, 20, 256)
        assert linear(LAYER, TOKENS[:0]).shape == (0, 30, 20, 256)
        linear(LAYER, TOKENS[:1, :1])  # too small to be worth it
    assert not calls


class Unusual(torch.Tensor):
    """A kind of numbers with rules of its own."""


@pytest.mark.parametrize(
    "bias", [torch.randn(512)[::2], torch.randn(1).expand(256), torch.randn(1), torch.randn(256).as_subclass(Unusual)]
)
def test_a_bias_that_does_not_lie_side_by_side_is_read_rightly(calls, bias):
    with torch.no_grad():
        torch.testing.assert_close(product(TOKENS, LAYER.weight, bias), F.linear(TOKENS, LAYER.weight, bias))
        if bias.numel() > 1:
            maps, kernel = torch.randn(1, 256, 5, 5), torch.randn(256, 1, 3, 3)
            expected = F.gelu(F.conv2d(maps, kernel, bias, padding=1, groups=256))
            torch.testing.assert_close(depthwise_gelu(maps, kernel, bias), expected)
    assert not calls


def test_derivatives_modes_and_switches_of_torch_are_respected(calls):
    with torch.no_grad(), forward_ad.dual_level():
        out = linear(LAYER, forward_ad.make_dual(TOKENS, torch.ones_like(TOKENS)))
        assert forward_ad.unpack_dual(out).tangent is not None
    with torch.no_grad():
        with torch.backends.mkldnn.flags(enabled=False):
            linear(LAYER, TOKENS)
        with DeviceContext(torch.device("cpu")):  # a function mode
            linear(LAYER, TOKENS)
        linear(nn.Linear(128, 256).requires_grad_(False), TOKENS.to_sparse().to_dense().as_subclass(Unusual))
    assert not calls


@pytest.mark.parametrize("name", ["paca_b0", "xcit_nano_12_p16", "emsnet_xxtiny", "mat_1", "partialformer_b0"])
def test_models_answer_the_same(name, calls, monkeypatch):
    torch.manual_seed(0)
    model, images = timm.create_model(name).eval(), torch.randn(4, 3, 224, 224)
    with torch.inference_mode():
        found = model(images)
        assert calls
        monkeypatch.setattr(inference, "onednn_is_faster", lambda: False)
        expected = model(images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
