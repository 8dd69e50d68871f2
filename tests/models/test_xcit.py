"""XCiT's own truths: equality with timm's port, both forms, and its weights' layouts."""

import pytest
import timm
import torch
import torch.nn.functional as F

import vitreous
from vitreous import record
from vitreous.errors import InputError
from vitreous.layers.channel_attention import ChannelAttention
from vitreous.models.xcit import VARIANTS, XCiT

SMALL = dict(dim=32, depth=6, heads=4, num_classes=5)
SLOW = ("medium", "large", "small_24")


def randomised(model: torch.nn.Module) -> torch.nn.Module:
    """Every parameter and statistic random, so that no term can be left out unnoticed."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name.endswith("running_var"):
                value.uniform_(0.5, 1.5)
            elif value.is_floating_point():
                value.normal_(std=0.2 if value.ndim == 1 else value[0].numel() ** -0.5)
                if "norm" in name and name.endswith("weight"):
                    value.add_(1.0)
    return model.eval()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if any(s in n for s in SLOW) else []) for n in VARIANTS]
)
def test_equals_timm(name: str) -> None:
    theirs = randomised(timm.create_model(f"{name}_224"))
    ours = timm.create_model(name).eval()
    report = ours.load_weights(theirs.state_dict())
    assert report[1:] == ([], [], []), str(report)
    images = torch.randn(2, 3, 96, 160)
    with torch.no_grad():
        expected = theirs(images)
        error = (ours(images) - expected).abs().max() / expected.abs().max()
    assert error < 1e-5


def test_channel_attention_is_the_formula_of_the_paper() -> None:
    model = XCiT(**SMALL).eval().double()
    layer = model.stages[1].blocks[0].attention
    with torch.no_grad():
        layer.temperature.uniform_(0.5, 2)
    seen = {}
    layer.register_forward_hook(lambda _m, inputs, out: seen.update(x=inputs[0].flatten(1, 2), out=out.flatten(1, 2)))
    with torch.no_grad(), record(model, "*.channel_attention") as maps:
        model(torch.randn(2, 3, 64, 96, dtype=torch.float64))
    q, k, v = layer.qkv(seen["x"]).unflatten(2, (3, 4, 8)).permute(2, 0, 3, 4, 1)  # (B, h, d, N) each
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    attention = (layer.temperature * (q @ k.transpose(-2, -1))).softmax(-1)
    torch.testing.assert_close(maps["stages.1.blocks.0.attention.channel_attention"], attention)
    out = layer.proj((attention @ v).permute(0, 3, 1, 2).flatten(2))
    torch.testing.assert_close(seen["out"], out)


def test_maps_sum_to_one_and_change_nothing() -> None:
    model = XCiT(**SMALL).eval()
    images = torch.randn(2, 3, 70, 99)
    with torch.no_grad():
        plain = model(images)
        with record(model) as maps:
            recorded = model(images)
    torch.testing.assert_close(plain, recorded, rtol=1e-5, atol=1e-5)
    channel, where = maps["stages.0.blocks.0.attention.channel_attention"], maps["class_blocks.1.attention.map"]
    torch.testing.assert_close(channel.sum(-1), torch.ones(2, 4, 8))
    assert where.shape == (2, 4, 5, 7)
    assert (where.sum((2, 3)) < 1).all(), "the rest is the class token's attention to itself"


@pytest.mark.parametrize("patch", [16, 8, 4])
@pytest.mark.parametrize("size", [(64, 96), (70, 99), (33, 161)])
def test_dense_form_is_a_real_pyramid(patch: int, size: tuple[int, int]) -> None:
    model = XCiT(**SMALL, patch=patch, dense=True)
    maps, pooled = model.features(torch.randn(2, 3, *size))
    assert [tuple(m.shape[2:]) for m in maps] == [(-(-size[0] // s), -(-size[1] // s)) for s in (4, 8, 16, 32)]
    sum(m.square().mean() for m in maps).backward()
    assert all(p.grad is not None for p in model.parameters()), "the dense form has no layer it does not use"
    assert pooled.shape == (2, 32)


@pytest.mark.parametrize(("name", "millions"), [("tiny_12_p16", 6.08), ("tiny_12_p8", 5.77), ("small_12_p16", 24.09)])
def test_dense_form_has_the_published_size(name: str, millions: float) -> None:
    with torch.device("meta"):
        model = timm.create_model(f"xcit_{name}", dense=True)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.005)


def test_features_only_raw_maps_on_request() -> None:
    pyramid = timm.create_model("xcit_nano_12_p16", features_only=True)
    assert pyramid.feature_info.reduction() == [4, 8, 16, 32]
    raw = timm.create_model("xcit_nano_12_p16", features_only=True, dense=False)
    assert [tuple(m.shape[2:]) for m in raw(torch.randn(1, 3, 64, 96))] == [(4, 6)] * 4
    assert not any("class" in name for name, _ in raw.named_parameters())


def test_classification_weights_start_a_dense_model() -> None:
    whole, dense = XCiT(**SMALL), XCiT(**SMALL, dense=True)
    report = dense.load_weights(whole.state_dict())
    assert report.reset
    assert all(".rescale." in key for key in report.reset)
    assert torch.equal(dense.stages[3].blocks[0].mlp.fc1.weight, whole.stages[3].blocks[0].mlp.fc1.weight)


def test_weights_of_a_dense_model_are_not_enough_for_a_classifier() -> None:
    with pytest.raises(InputError, match="missing: class_token"):
        XCiT(**SMALL).load_weights(XCiT(**SMALL, dense=True).state_dict())


def test_every_layer_is_used_whichever_maps_are_asked_for() -> None:
    for indices in ((1, 2, 3), (0, 3), (2,)):
        model = timm.create_model("xcit_nano_12_p16", depth=4, features_only=True, out_indices=indices)
        maps = model(torch.randn(1, 3, 64, 64))
        assert [m.shape[2] for m in maps] == [64 // 4 // 2**i for i in indices]
        sum(m.square().mean() for m in maps).backward()
        assert all(p.grad is not None for p in model.parameters())


def test_many_positions_through_the_covariance() -> None:
    """The cheaper way of large images computes the same, in both precisions, and taps see the same."""
    layer = randomised(ChannelAttention(32, 4))
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-13)):  # of sums over some hundred terms
        x = torch.randn(2, 9, 11, 32, dtype=dtype)
        layer.to(dtype)
        with torch.no_grad(), record(layer) as maps:
            cheap, attention = layer(x), maps["channel_attention"]
            expected = layer.per_position(x.flatten(1, 2)).view_as(x)
        torch.testing.assert_close(cheap, expected, rtol=0, atol=tolerance * expected.abs().max().item())
        torch.testing.assert_close(attention, maps["channel_attention"], rtol=0, atol=tolerance)
        assert not torch.equal(cheap, expected)  # two ways, not one


def test_stages_end_where_the_paper_reads() -> None:
    with torch.device("meta"):
        assert XCiT(128, 12, 4).starts == (0, 4, 6, 8, 12)
        assert XCiT(128, 24, 4).starts == (0, 8, 12, 16, 24)


def test_half_precision_stays_finite_on_large_maps() -> None:
    """Sums over thousands of positions would leave float16's range if channels were not normalised first."""
    model = XCiT(**SMALL, patch=4).eval()
    images = 4 * torch.randn(1, 3, 256, 256)
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        low = model(images)
    with torch.no_grad():
        full = model(images)
    assert torch.isfinite(low).all()
    torch.testing.assert_close(low.float(), full, rtol=0.05, atol=0.05)


def test_half_precision_of_large_values() -> None:
    """Squares of 50 sum up to more than float16 can hold over 400 positions, in the covariance too."""
    layer = randomised(ChannelAttention(32, 4))
    x = 50 * torch.randn(1, 20, 20, 32)
    with torch.no_grad():
        full = layer(x)
        with torch.autocast("cpu", torch.float16):
            low = layer(x)
    assert (low - full).norm() < 0.01 * full.norm()  # float16 has three digits


def test_temperatures_and_class_token_are_not_decayed() -> None:
    names = XCiT(**SMALL).no_weight_decay()
    assert "class_token" in names
    assert "stages.0.blocks.0.attention.temperature" in names


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (dict(patch=12), "accepted: 16, 8"),
        (dict(heads=5), "5 heads cannot divide 32"),
        (dict(heads=(4, 4, 4, 4)), r"heads=\(4, 4, 4, 4\) given; it must be a whole number"),
        (dict(ends=(1, 2)), "four rising block numbers"),
        (dict(ends=(-3, 1, 2, 5)), "four rising block numbers"),
        (dict(tokens_norm="no"), "tokens_norm='no' given; accepted: True, False"),
        (dict(global_pool="max"), "accepted: 'token', 'avg'"),
    ],
)
def test_bad_arguments(arguments: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        XCiT(**{**SMALL, **arguments})


def test_weights_for_another_patch_size_are_refused() -> None:
    with pytest.raises(InputError, match=r"stem.convs.0.conv.weight: checkpoint \(8, 3, 3, 3\), model \(4, 3, 3, 3\)"):
        XCiT(**SMALL, patch=16).load_weights(XCiT(**SMALL, patch=8).state_dict())


def test_tags() -> None:
    config = timm.get_pretrained_cfg("xcit_small_12_p16.fb_dist_in1k_384")
    assert config.input_size == (3, 384, 384)
    assert timm.get_pretrained_cfg("xcit_small_12_p8.fb_dino").num_classes == 0
    with pytest.raises(InputError, match="it has: fb_dist_in1k, fb_dist_in1k_384, fb_in1k"):
        vitreous.create_model("xcit_tiny_12_p16.imagenet")
