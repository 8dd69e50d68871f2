"""MAT's own truths: its layers re-derived in plain torch, the printed ablations, what its taps show, and any size."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitreous
from tests.support.families import assert_trains, awake
from vitreous import record
from vitreous.errors import InputError
from vitreous.figures.counting import count_model
from vitreous.layers.conv_norm import ConvNorm
from vitreous.layers.windows import ExportedWindows, Windows
from vitreous.models.mat import MAT, VARIANTS, AbstractAttention, BilinearEmbed, MATBlock

SHAPE = dict(dims=(8, 16, 32, 48), depths=(1, 1, 2, 1), heads=(2, 2, 4, 4), window=3, num_classes=3)
M, W, N = "mat", "window", "none"


# Formulas -----------------------------------------------------------------------------------------


def softmax_attention(q, k, v, heads):
    """(N, C) over (M, C): the weights (h, N, M) and the result (N, C)."""
    q, k, v = (y.unflatten(1, (heads, -1)) for y in (q, k, v))
    weights = (torch.einsum("nhd,mhd->hnm", q, k) / q.shape[-1] ** 0.5).softmax(-1)
    return weights, torch.einsum("hnm,mhd->nhd", weights, v).flatten(1)


@pytest.mark.parametrize("size", [(8, 12), (7, 10), (3, 5)], ids=["whole windows", "padded windows", "one row"])
def test_attention_is_the_formula_of_the_text(size: tuple[int, int]) -> None:
    """One image at a time, one window at a time, windows cut short at the border instead of padded and masked."""
    w, heads = 4, 3
    layer = awake(AbstractAttention(12, heads)).double()
    x = torch.randn(2, *size, 12, dtype=torch.float64)
    corners = [(top, left) for top in range(0, size[0], w) for left in range(0, size[1], w)]
    with torch.no_grad(), record(layer) as maps:
        result = layer(x, Windows(x, w, 1))
    for b, image in enumerate(x):
        queries, own = torch.empty_like(image), torch.empty_like(image)
        abstract, seen = [], torch.empty(heads, *size, dtype=image.dtype)
        for top, left in corners:
            here = (slice(top, top + w), slice(left, left + w))
            tokens = torch.cat([layer.token[0], image[here].flatten(0, 1)])
            q, k, v = layer.qkv(tokens).chunk(3, -1)
            weights, out = softmax_attention(q, k, v, heads)
            abstract.append(out[0])
            for target, value in ((queries, q[1:]), (own, out[1:])):
                target[here] = value.reshape(image[here].shape)
            seen[:, *here] = weights[:, 0, 1:].reshape(seen[:, *here].shape)
            inside = torch.arange(w * w).view(w, w)[: size[0] - top, : size[1] - left].flatten() + 1
            rows = maps["window_attn"][b][:, :, *here].flatten(2)[:, [0, *inside]]  # (h, t, positions of the window)
            torch.testing.assert_close(rows.transpose(1, 2), weights[:, 1:])
        mixing, mixed = softmax_attention(*layer.mix_qkv(torch.stack(abstract)).chunk(3, -1), heads)
        k, v = layer.abs_kv(layer.mix_proj(mixed)).chunk(2, -1)
        fusing, gained = softmax_attention(queries.flatten(0, 1), k, v, heads)
        gained = gained.reshape(image.shape)
        torch.testing.assert_close(result[b], layer.proj(own + gained))
        torch.testing.assert_close(maps["abstract_attn"][b], seen)
        torch.testing.assert_close(maps["mix_attn"][b].flatten(2), mixing.transpose(1, 2))
        torch.testing.assert_close(maps["fusion_attn"][b].flatten(2), fusing.transpose(1, 2))
        torch.testing.assert_close(maps["before_fusion"][b], own.permute(2, 0, 1))
        torch.testing.assert_close(maps["after_fusion"][b], (own + gained).permute(2, 0, 1))
        torch.testing.assert_close(maps["fusion_gain"][b, 0], gained.norm(dim=-1) / own.norm(dim=-1))


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("size", [(8, 12), (7, 10), (3, 5)])
def test_both_kinds_of_windows_agree(size: tuple[int, int], extra: int) -> None:
    x, token = torch.randn(2, *size, 6), torch.randn(1, 1, 6) if extra else None
    plain, exported = Windows(x, 4, extra), ExportedWindows(x, 4, extra)
    keys = exported.keys[:, 0, 0]
    assert torch.equal(keys, torch.ones_like(keys) if plain.keys is None else plain.keys[:, 0, 0])
    split = [windows.split(x, token) for windows in (plain, exported)]
    assert torch.equal(split[0][keys], split[1][keys])
    for windows, tokens in zip((plain, exported), split, strict=True):
        assert torch.equal(windows.join(tokens), x)
    if extra:
        assert torch.equal(plain.summaries(split[0]), exported.summaries(split[1])[:, :-1])
        assert exported.summary_keys.flatten().tolist() == [True] * math.prod(plain.grid) + [False]


def test_block_is_position_attention_and_feed_forward() -> None:
    block = awake(MATBlock(8, 2, M, mlp_depthwise=True, drop_rate=0.0)).double()
    x = torch.randn(2, 5, 6, 8, dtype=torch.float64)
    windows = Windows(x, 3, 1)

    def depthwise(conv: nn.Conv2d, y: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(y.permute(0, 3, 1, 2), conv.weight, conv.bias, padding=1, groups=y.shape[-1])
        return y.permute(0, 2, 3, 1)

    with torch.no_grad():
        y = x + depthwise(block.position, x)
        y = y + block.attention(block.norm1(y), windows)
        hidden = F.gelu(depthwise(block.mlp.depthwise, block.mlp.fc1(block.norm2(y))))
        torch.testing.assert_close(block(x, windows), y + block.mlp.fc2(hidden))


@pytest.mark.parametrize("size", [(6, 8), (7, 5), (1, 1)])
def test_bilinear_sampling_starts_as_the_mean_of_cells(size: tuple[int, int]) -> None:
    model = MAT(**SHAPE).eval()
    embed = model.stages[1].downsample
    x = torch.randn(2, *size, 8)
    cells = F.pad(x.permute(0, 3, 1, 2), (0, size[1] % 2, 0, size[0] % 2), mode="replicate")
    expected = embed.project(F.avg_pool2d(cells, 2).permute(0, 2, 3, 1))
    torch.testing.assert_close(embed(x), expected)


def test_bilinear_sampling_reads_at_the_shown_points() -> None:
    embed = awake(BilinearEmbed(4, 6, stride=8, limit=None)).double().eval()
    with torch.no_grad():
        embed.offset.weight.mul_(8)
        x = torch.randn(1, 7, 9, 4, dtype=torch.float64)
        with record(embed) as maps:
            result = embed(x)
    reference, offsets, points = (maps[name][0] for name in ("reference", "offsets", "points"))
    assert points.shape == (2, 4, 5)
    assert reference[:, 2, 3].tolist() == [5 * 8, 7 * 8]  # centre of the third row's fourth cell, in image pixels
    torch.testing.assert_close(points, reference + offsets)
    assert offsets.abs().max() > 8, "the test should reach into neighbouring cells"
    for i, j in ((0, 0), (2, 3), (3, 4)):
        row, column = (p.clamp(0, side - 1) for p, side in zip(points[:, i, j] / 8 - 0.5, (7, 9), strict=True))
        pixels = torch.zeros(4, dtype=x.dtype)
        for r in range(7):
            for c in range(9):
                pixels += (1 - (row - r).abs()).clamp(min=0) * (1 - (column - c).abs()).clamp(min=0) * x[0, r, c]
        torch.testing.assert_close(result[0, i, j], embed.project(pixels[None, None, None])[0, 0, 0])
    embed.limit = 0.5
    with torch.no_grad(), record(embed, "offsets") as maps:
        embed(x)
    assert maps["offsets"].abs().max() == 0.5 * 8


def test_folded_norm_is_the_norm() -> None:
    for arguments in (dict(stride=2), dict(groups=4), dict(kernel_size=1, bias=True), dict(bias=True)):
        layer = awake(ConvNorm(4, 8, **arguments)).eval()
        x = torch.randn(2, 7, 5, 4)
        expected = layer.norm(layer.conv(x.permute(0, 3, 1, 2))).permute(0, 2, 3, 1)
        torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


# Figures ------------------------------------------------------------------------------------------

ABLATIONS = {  # of MAT-2: what differs, millions of parameters, GFLOPs; both as rebuilt from the printed tables
    "no mixer": (dict(mixers=(N, N, N, N), mlp_depthwise=False), 5.697, 0.460),
    "windows only": (dict(mixers=(N, N, W, W)), 7.800, 0.658),
    "convolution": (dict(embed="conv"), 11.106, 0.705),
    "patch merging": (dict(embed="merge"), 10.892, 0.682),
    "all stages": (dict(mixers=(M, M, M, M)), 10.872, 0.786),
    "stages 2 to 4": (dict(mixers=(N, M, M, M)), 10.850, 0.709),
    "stage 4": (dict(mixers=(N, N, N, M)), 9.765, 0.568),
}


@pytest.mark.parametrize("row", ABLATIONS)
def test_ablations_have_the_printed_size_and_cost(row: str) -> None:
    """The printed GFLOPs count norms too: 5 per element of a LayerNorm, 2 of a BatchNorm."""
    options, params, gflops = ABLATIONS[row]
    with torch.device("meta"):
        model = MAT(**{**VARIANTS["mat_2"], **options})
    norms = [0]
    for module in model.modules():
        cost = {nn.LayerNorm: 5, ConvNorm: 2}.get(type(module), 0)
        if cost and getattr(module, "elementwise_affine", True):
            module.register_forward_hook(
                lambda _m, _i, out, cost=cost: norms.__setitem__(0, norms[0] + cost * out.numel())
            )
    figures = count_model(model, (3, 224, 224))
    assert figures.params / 1e6 == pytest.approx(params, rel=5e-4)
    assert (figures.macs + norms[0]) / 1e9 == pytest.approx(gflops, rel=2e-3)


# Behaviour ----------------------------------------------------------------------------------------


def test_taps_are_picture_shaped_and_sum_to_one() -> None:
    model = awake(MAT(**SHAPE)).eval()
    images = torch.randn(2, 3, 131, 99)  # stage 3: 9 x 7 positions, 3 x 3 windows, the last column mostly padding
    with torch.no_grad():
        plain = model(images)
        with record(model) as maps:
            recorded = model(images)
    torch.testing.assert_close(plain, recorded, rtol=1e-4, atol=1e-4)
    at = "stages.2.blocks.1.attention."
    shapes = {name.removeprefix(at): tuple(value.shape) for name, value in maps.items() if name.startswith(at)}
    assert shapes == dict(
        window_attn=(2, 4, 10, 9, 7),
        abstract_attn=(2, 4, 9, 7),
        mix_attn=(2, 4, 9, 3, 3),
        fusion_attn=(2, 4, 9, 9, 7),
        before_fusion=(2, 32, 9, 7),
        fusion_gain=(2, 1, 9, 7),
        after_fusion=(2, 32, 9, 7),
    )
    for name in ("window_attn", "mix_attn", "fusion_attn"):
        torch.testing.assert_close(maps[at + name].sum(2), torch.ones(2, 4, *shapes[name][-2:]))
    # The abstract token also looks at itself, so a window's positions share a little less than one.
    shared = F.pad(maps[at + "abstract_attn"], (0, 2)).unfold(2, 3, 3).unfold(3, 3, 3).sum((-2, -1))
    assert shared.shape == (2, 4, 3, 3)
    assert (shared < 1).all()
    assert (shared > 0).all()
    assert maps["stages.3.downsample.points"].shape == (2, 2, 5, 4)
    assert [name for name in maps if name.startswith(("stages.0", "stages.1.blocks"))] == ["stages.0.output"]


def test_gradients_reach_the_recorded_maps() -> None:
    model = awake(MAT(**SHAPE)).eval()
    with record(model) as maps:
        loss = model(torch.randn(1, 3, 99, 131)).square().sum()
    beside = ("fusion_gain", "reference", "window_attn")  # shown, but not on the way to the output
    watched = {name: value for name, value in maps.items() if not name.endswith(beside)}
    gradients = torch.autograd.grad(loss, list(watched.values()))
    for name, gradient in zip(watched, gradients, strict=True):
        assert gradient.abs().sum() > 0, name


def test_attention_is_fused_unless_a_tap_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: (calls.append(1), fused(*a, **k))[1])
    model, images = MAT(**SHAPE).eval(), torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        model(images)
        assert len(calls) == 9  # within windows, among abstract tokens and back, in each of 3 blocks
        with record(model, "*.before_fusion", "*.fusion_gain", "*.points"):
            model(images)
        assert len(calls) == 18
        with record(model, "stages.3.*.fusion_attn", "stages.3.*.mix_attn"):
            model(images)
    assert len(calls) == 25


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(mixers=(N, N, N, N), mlp_depthwise=False),
        dict(mixers=(M, W, W, M)),
        dict(embed="conv"),
        dict(embed="merge"),
        dict(offset_limit=2.0),
        dict(stem_stride=2),
        dict(stem_stride=1, window=7),
        dict(head_width=0),
        dict(drop_path_rate=0.2, drop_rate=0.1),
    ],
    ids=str,
)
def test_options_train_and_take_odd_sizes(options: dict) -> None:
    assert_trains(MAT(**{**SHAPE, **options}), [(64, 64), (35, 99)])


def test_maps_are_normalised_and_the_wide_head_stays_with_the_classifier() -> None:
    model = MAT(**SHAPE).eval()
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        maps, pooled = model.features(images)
        final = model.forward_features(images)
    for level in maps:
        torch.testing.assert_close(level.mean(1), torch.zeros_like(level[:, 0]), atol=1e-5, rtol=0)
        assert (level.var(1, correction=0) - 1).abs().max() < 0.1, "up to the norm's epsilon"
    assert final.shape == (2, 1280, 2, 3)
    torch.testing.assert_close(pooled, final.mean((2, 3)))
    dense = vitreous.create_model("mat_1", depths=(1, 1, 1, 1), features_only=True)
    assert not [name for name, _ in dense.named_parameters() if "projection" in name or "head" in name]
    sum(level.square().mean() for level in dense(images)).backward()
    assert all(parameter.grad is not None for parameter in dense.parameters())


def test_half_precision() -> None:
    model = awake(MAT(**SHAPE)).eval()
    images = torch.randn(2, 3, 70, 99)
    with torch.no_grad():
        reference = model(images)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model(images)
        half = model.bfloat16()(images.bfloat16())
    assert half.dtype == torch.bfloat16
    for result in (mixed, half):
        assert F.cosine_similarity(result.float().flatten(), reference.flatten(), dim=0) > 0.99


def test_starts_as_the_text_says() -> None:
    model = MAT(**VARIANTS["mat_2"])
    stage = model.stages[2]
    assert not stage.downsample.offset.weight.any()
    for weight, std in (
        (stage.blocks[0].attention.token, 0.02),
        (stage.blocks[0].attention.abs_kv.weight, 0.02),
        (stage.downsample.project.conv.weight, 0.02),
        (model.projection.widen.conv.weight, 0.02),
        (stage.blocks[0].position.weight, (2 / 9) ** 0.5),
        (model.stem.conv3.conv.weight, (2 / (9 * 32)) ** 0.5),
    ):
        assert weight.std().item() == pytest.approx(std, rel=5 / (2 * weight.numel()) ** 0.5)
    assert model.no_weight_decay() == {f"stages.{i}.blocks.{j}.attention.token" for i in (2, 3) for j in range(6)}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (dict(heads=(2, 4, 7, 16)), "7 heads cannot divide 128 channels"),
        (dict(depths=(2, 2)), r"depths=\(2, 2\) has 2 entries; dims=\(32, 64, 128, 256\) needs 4"),
        (dict(depths=(2, 0, 2, 2)), r"depths=\(2, 0, 2, 2\) given; every stage needs at least 1 block"),
        (dict(mixers=(N, N, M, "swin")), "accepted for each stage: none, window, mat"),
        (dict(embed="pool"), "embed='pool' given; accepted: bilinear, conv, merge"),
        (dict(window=0), "window=0 given; it must be a whole number, at least 1"),
        (dict(window=3.5), "window=3.5 given"),
        (dict(mlp_depthwise="no"), "mlp_depthwise='no' given; accepted: True, False"),
        (dict(offset_limit=-1.0), "offset_limit=-1.0 given"),
        (dict(stem_stride=3), "stem_stride=3 given; accepted: 1, 2, 4"),
        (dict(global_pool=""), "num_classes=1000 needs global_pool='avg'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_arguments_say_what_to_do(arguments: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        vitreous.create_model("mat_2", **arguments)
