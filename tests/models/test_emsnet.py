"""EMSNet's own truths: its operators re-derived in plain torch, the ablation rows, taps and sizes."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.copies import Copies
from tests.support.families import assert_trains
from vitreous import record
from vitreous.errors import InputError
from vitreous.figures.counting import count_model
from vitreous.models.emsnet import VARIANTS, EMSNet

SHAPE = dict(dims=(16, 32, 48, 32), depths=(1, 1, 2, 1), mlp_ratios=(2, 2, 2, 2), num_classes=3)


def lively(**options) -> EMSNet:
    """A model in eval mode none of whose parameters and statistics are still at a neutral value."""
    torch.manual_seed(0)
    model = EMSNet(**{**SHAPE, **options}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.5)
                module.running_var.uniform_(0.5, 2.0)
    return model


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer as what the paper calls it, a 1x1 convolution of (B, C, H, W)."""
    return F.conv2d(x, layer.weight[:, :, None, None], layer.bias)


def propagate(layer: nn.Module, x: Tensor, size: torch.Size) -> Tensor:
    p, _, c = layer.weight.shape
    kernel = layer.weight.permute(2, 0, 1).unsqueeze(1)
    return F.conv_transpose2d(x, kernel, layer.bias, stride=p, groups=c)[..., : size[0], : size[1]]


def static(layer: nn.Module, x: Tensor, whitening: str) -> Tensor:
    size, c = x.shape[2:], x.shape[1] // 4
    u = linear(layer.whiten, x)
    y = layer.depthwise(u - u.mean((2, 3) if whitening == "pixel" else 1, keepdim=True))
    branches = []
    for branch, p, part in ((layer.branch2, 2, y[:, :c]), (layer.branch4, 4, y[:, -c:])):
        pooled = linear(branch.embed, F.max_pool2d(part, p, p, ceil_mode=True))
        branches.append(propagate(branch.propagate, branch.down(branch.across(pooled)), size))
    y = linear(layer.fuse, torch.cat((branches[0], y[:, c:-c], branches[1]), 1))
    return linear(layer.value, x) * y.sigmoid()


def local_attention(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """C-MHSA with `unfold`; also the attention (B, h, 9, 9, windows)."""
    B, c, H, W = x.shape
    h = layer.heads
    attention = linear(layer.weights, layer.summary(x)).reshape(B, h, 9, 9, -1).softmax(3)
    values = F.unfold(linear(layer.values, x), 3, padding=1, stride=2).reshape(B, h, c // h, 9, -1)
    mixed = torch.einsum("bhqkl,bhdkl->bhdql", attention, values).reshape(B, c * 9, -1)
    return F.fold(mixed, (H, W), 3, padding=1, stride=2), attention


def global_attention(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """G-MHSA; also the attention (B, h, queries, keys)."""
    B, c, H, W = x.shape
    q, k, v = linear(layer.qkv, x).reshape(B, 3, layer.heads, -1, H * W).unbind(1)
    attention = torch.einsum("bhdn,bhdm->bhnm", q, k).div(math.sqrt(c // layer.heads)).softmax(-1)
    return linear(layer.proj, torch.einsum("bhnm,bhdm->bhdn", attention, v).reshape(B, c, H, W)), attention


def dynamic(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    outputs, attentions = [], []
    for branch, p, part, mix in zip(
        (layer.local_attention, layer.global_attention),
        (4, 6),
        x.chunk(2, 1),
        (local_attention, global_attention),
        strict=True,
    ):
        pooled = F.avg_pool2d(part, p, p, ceil_mode=True, count_include_pad=False)
        mixed, attention = mix(branch, linear(branch.embed, pooled))
        outputs.append(propagate(branch.propagate, mixed, x.shape[2:]))
        attentions.append(attention)
    return linear(layer.fuse, torch.cat(outputs, 1)), *attentions


@pytest.mark.parametrize("whitening", ["channel", "pixel"])
def test_block_is_the_formula_of_the_paper(whitening: str) -> None:
    block = lively(whitening=whitening).double().stages[2].blocks[0]
    x = torch.randn(2, 48, 15, 22, dtype=torch.float64)
    with torch.no_grad(), record(block) as maps:
        given = block(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        mixer = block.mixer
        z = F.gelu(linear(mixer.before, block.norm1(x)))
        attended, local, whole = dynamic(mixer.dynamic, z[:, 36:])
        y = x + linear(mixer.after, torch.cat((static(mixer.static, z[:, :36], whitening), attended), 1))
        y = y + linear(block.mlp.fc2, F.gelu(linear(block.mlp.fc1, block.norm2(y))))
    torch.testing.assert_close(given, y)
    torch.testing.assert_close(maps["mixer.dynamic.local_attention.map"].flatten(4), local)
    torch.testing.assert_close(maps["mixer.dynamic.global_attention.map"].flatten(3), whole.transpose(2, 3))
    torch.testing.assert_close(maps["output"], y)


# Figures ------------------------------------------------------------------------------------------

ABLATIONS = [  # on XXTiny: arguments, millions of parameters, billions of multiply-adds
    (dict(branches=()), 2.099, 0.478),
    (dict(branches=("static",)), 2.696, 0.587),
    (dict(branches=("static", "local")), 2.867, 0.544),
    (dict(), 2.577, 0.543),
    (dict(split=(2, 1, 1)), 2.635, 0.549),
    (dict(split=(1, 1, 2)), 2.640, 0.548),
    (dict(share=(1, 1)), None, 0.514),
    (dict(share=(5, 3)), None, 0.540 * (1 - 0.028)),
]


@pytest.mark.parametrize(("options", "params", "gmacs"), ABLATIONS, ids=str)
def test_ablation_rows_have_their_size_and_cost(options: dict, params: float | None, gmacs: float) -> None:
    with torch.device("meta"):
        model = EMSNet(**VARIANTS["emsnet_xxtiny"], **options)
    figures = count_model(model, (3, 224, 224))
    assert params is None or figures.params / 1e6 == pytest.approx(params, rel=5e-4)
    assert figures.macs / 1e9 == pytest.approx(gmacs, rel=0.01)


@pytest.mark.parametrize(("name", "gmacs"), [("emsnet_xtiny_128", 0.665), ("emsnet_tiny", 1.812)])
def test_an_even_share_costs_what_the_spec_says(name: str, gmacs: float) -> None:
    with torch.device("meta"):
        model = EMSNet(**VARIANTS[name], share=(1, 1))
    assert count_model(model, (3, 224, 224)).macs / 1e9 == pytest.approx(gmacs, rel=0.01)


@pytest.mark.slow  # seconds for each
@pytest.mark.parametrize("name", VARIANTS)
def test_cost_is_linear_in_pixels(name: str) -> None:
    with torch.device("meta"):
        model = EMSNet(**VARIANTS[name])
    sides = np.array([256, 724, 2048])
    macs = [count_model(model, (3, side, side)).macs for side in sides]
    exponent = np.polyfit(np.log(sides**2), np.log(macs), 1)[0]
    assert exponent <= 1.05


# Taps ---------------------------------------------------------------------------------------------


def test_taps_are_picture_shaped_and_attention_sums_to_one() -> None:
    model = lively()
    images = torch.randn(2, 3, 130, 99)
    with torch.no_grad():
        plain = model(images)
        with record(model) as maps:
            torch.testing.assert_close(model(images), plain, rtol=1e-4, atol=1e-4)
    block = "stages.0.blocks.0."  # 33 x 25 positions, 9 x 7 cells of 4 x 4, 6 x 5 of 6 x 6
    shapes = {key.removeprefix(block): tuple(value.shape) for key, value in maps.items() if key.startswith(block)}
    assert shapes == {
        "mixer.static.whitened": (2, 12, 33, 25),
        "mixer.static.branch2.output": (2, 6, 33, 25),
        "mixer.static.kept": (2, 6, 33, 25),
        "mixer.static.branch4.output": (2, 6, 33, 25),
        "mixer.static.gate": (2, 12, 33, 25),
        "mixer.static.output": (2, 12, 33, 25),
        "mixer.dynamic.local_attention.map": (2, 1, 9, 9, 5, 4),
        "mixer.dynamic.local_attention.centre": (2, 1, 9, 5, 4),
        "mixer.dynamic.local_attention.output": (2, 2, 33, 25),
        "mixer.dynamic.global_attention.map": (2, 1, 30, 6, 5),
        "mixer.dynamic.global_attention.output": (2, 2, 33, 25),
        "mixer.dynamic.output": (2, 4, 33, 25),
        "output": (2, 16, 33, 25),
    }
    for name, value in maps.items():
        if name.endswith((".map", ".centre")):
            keys = 3 if "local_attention.map" in name else 2
            torch.testing.assert_close(value.sum(keys), torch.ones_like(value.sum(keys)), msg=name)
    torch.testing.assert_close(
        maps[f"{block}mixer.dynamic.local_attention.centre"], maps[f"{block}mixer.dynamic.local_attention.map"][:, :, 4]
    )
    whitened, gate = maps[f"{block}mixer.static.whitened"], maps[f"{block}mixer.static.gate"]
    torch.testing.assert_close(whitened.mean(1), torch.zeros(2, 33, 25), rtol=0, atol=1e-5)
    assert gate.min() > 0
    assert gate.max() < 1


def test_gradients_reach_every_tap() -> None:
    model = lively()
    with record(model, "stages.2.blocks.0.*") as maps:
        loss = model(torch.randn(1, 3, 130, 99)).square().sum()
    for name, gradient in zip(maps, torch.autograd.grad(loss, list(maps.values())), strict=True):
        assert gradient.abs().sum() > 0, name


# Training, sizes, layouts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        dict(whitening="pixel"),
        dict(branches=()),
        dict(branches=("static",)),
        dict(branches=("static", "local")),
        dict(branches=("static", "global")),
        dict(branches=("local", "global"), split=(5, 5, 7)),
        dict(share=(1, 1), split=(2, 1, 1)),
        dict(kernel_size=5),
        dict(local_heads=(2, 2, 2, 4), global_heads=(1, 1, 3, 2)),
        dict(stem_stride=1),
        dict(drop_path_rate=0.2, drop_rate=0.1),
    ],
    ids=str,
)
def test_options_train_and_take_any_size(options: dict) -> None:
    assert_trains(EMSNet(**{**SHAPE, **options}), [(64, 64), (70, 99)])


def test_small_images_with_a_small_stride() -> None:
    model = EMSNet(**SHAPE, stem_stride=1).eval()
    assert model.strides == (1, 2, 4, 8)
    assert [m.shape[2] for m in model.maps(torch.randn(1, 3, 32, 32))] == [32, 16, 8, 4]


def test_maps_are_normalised_without_changing_the_trunk() -> None:
    """In training every map has mean 0 and variance 1 per channel, and the norms beside the trunk have no weights."""
    model = EMSNet(**SHAPE).train()
    maps = model.maps(torch.randn(4, 3, 96, 96))
    for m in maps:
        torch.testing.assert_close(m.mean((0, 2, 3)), torch.zeros(m.shape[1]), rtol=0, atol=1e-4)
    assert [len(list(stage.norm.parameters())) for stage in model.stages] == [0, 0, 0, 2]


def test_large_maps_in_pieces_equal_the_whole() -> None:
    mlp = lively(mlp_ratios=(8, 8, 4, 4)).stages[0].blocks[0].mlp
    x = torch.randn(3, 61, 59, 16)
    with torch.no_grad():
        pieces = mlp(x)
    torch.testing.assert_close(pieces, mlp(x), rtol=1e-5, atol=1e-5)  # with gradients it is computed at once


def test_the_only_copy_is_of_the_local_windows() -> None:
    """They overlap, so their values have to be gathered: one eighth of the channels at a sixteenth of the positions."""
    block = lively().stages[2].blocks[0]
    with torch.no_grad(), Copies() as copies:
        block(torch.randn(2, 24, 24, 48))
    assert {"convolution", "addmm", "gelu"} <= copies.seen
    assert copies.found == ["clone"], copies.found


def test_autocast_stays_close() -> None:
    model = lively()
    images = torch.randn(2, 3, 70, 99)
    with torch.no_grad():
        exact = model(images)
        with torch.autocast("cpu", torch.bfloat16):
            rough = model(images)
    assert rough.dtype == torch.bfloat16
    assert (rough - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(whitening="batch"), "accepted: channel, pixel"),
        (dict(branches="static"), "accepted: any of"),
        (dict(branches=("static", "window")), "accepted: any of"),
        (dict(split=(1, 2)), r"split=\(1, 2\) given; give 3"),
        (dict(share=(3, 0)), r"share=\(3, 0\) given; give 2"),
        (dict(kernel_size=4), "kernel_size=4 given"),
        (dict(dims=(16, 20, 48, 32)), "20 channels cannot be divided"),
        (dict(local_heads=(1, 3, 1, 1)), "3 local heads cannot divide 4 of the 32 channels"),
        (dict(global_heads=(1, 1, 0, 1)), "0 global heads cannot divide 6 of the 48 channels"),
        (dict(local_heads=(1, 1)), "2 entries"),
        (dict(local_heads=2), "local_heads=2 given; give a tuple"),
        (dict(depths=(1, 1)), "2 entries"),
        (dict(stem_stride=3), "accepted: 1, 2, 4"),
        (dict(branch=()), "nearest: branches"),
    ],
    ids=str,
)
def test_bad_arguments_say_what_to_do(options: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        EMSNet(**{**SHAPE, **options})
