"""PartialFormer's own truths: a block re-derived in plain torch, the printed costs, taps and sizes."""

from functools import cache

import pytest
import timm
import torch
import torch.nn.functional as F

from tests.support.families import assert_trains
from vitreous import record, tap_names
from vitreous.errors import InputError
from vitreous.figures.counting import count_model
from vitreous.models.partialformer import PartialFormer

SHAPE = dict(dims=(16, 24, 32, 40), depths=(1, 1, 2, 1), heads=(2, 2, 4, 4), num_classes=3, head_width=24)


def tiny(**options) -> PartialFormer:
    """A small model whose normally trivial parameters (biases, head mixing) are random, so that errors show."""
    model = PartialFormer(**{**SHAPE, **options})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def plain_attention(layer, x: torch.Tensor, score: torch.Tensor, *, residual: bool) -> torch.Tensor:
    """Sections 2.2 to 2.6 of the specification, literally: sort, concatenate, attend twice, put back. One image."""
    (N, C), h = x.shape, layer.heads
    order = sorted(range(N), key=lambda i: (-score[i].item(), i))
    count = max(1, N * layer.fraction.numerator // layer.fraction.denominator)
    z = torch.cat([layer.token[None], x[order]])
    q, k, v = (y.unflatten(1, (h, -1)).transpose(0, 1) for y in layer.qkv(z).chunk(3, 1))  # (h, 1 + N, d)
    m, scale = count + 1, (C // h) ** -0.5
    scores = torch.einsum("hid,hjd->ijh", q[:, :m], k[:, :m]) * scale
    weights = layer.mixer.reduce(layer.mixer.expand(scores).softmax(1))  # (m, m, h)
    front = layer.proj(torch.einsum("ijh,hjd->ihd", weights, v[:, :m]).flatten(1))
    out = front[1:]
    if count < N:
        read = torch.einsum("hd,hjd->hj", front[0].unflatten(0, (h, -1)), k[:, m:]).mul(scale).softmax(1)
        update = layer.spread(torch.einsum("hj,hjd->hd", read, v[:, m:]).flatten())
        out = torch.cat([out, x[order[count:]] + update if residual else update.expand(N - count, -1)])
    result = torch.empty_like(x)
    result[order] = out
    return result


@pytest.mark.parametrize("project", ["all", "needed"])
@pytest.mark.parametrize("residual", [True, False])
def test_block_is_the_formulas_of_the_specification(residual: bool, project: str) -> None:
    model = tiny(sqa_residual=residual, project=project).eval().double()
    for stage, size in ((0, (9, 7)), (2, (5, 7)), (3, (3, 2)), (3, (1, 1))):
        block = model.stages[stage].blocks[0]
        x = torch.randn(2, *size, block.norm1.normalized_shape[0], dtype=torch.float64)
        with torch.no_grad():
            out = block(x)
            position = block.position
            y = F.conv2d(x.permute(0, 3, 1, 2), position.weight, position.bias, padding=1, groups=x.shape[-1])
            y = x + y.permute(0, 2, 3, 1)
            tokens, score = block.norm1(y).flatten(1, 2), y.mean(-1).flatten(1)
            pairs = zip(tokens, score, strict=True)
            y = y + torch.stack([plain_attention(block.attention, *p, residual=residual) for p in pairs]).view_as(y)
            hidden = block.mlp.depthwise(block.mlp.fc1(block.norm2(y)).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            y = y + block.mlp.fc2(F.gelu(hidden))
        torch.testing.assert_close(out, y)


def test_maps_head_and_downsampling() -> None:
    model = tiny().eval().double()
    images = torch.randn(1, 3, 65, 97, dtype=torch.float64)
    with torch.no_grad():
        maps, pooled = model.features(images)
        x = model.stem(images.permute(0, 2, 3, 1))
        for i, stage in enumerate(model.stages):
            if i:
                x = stage.downsample.norm(stage.downsample.conv(x.permute(0, 3, 1, 2))).permute(0, 2, 3, 1)
            for block in stage.blocks:
                x = block(x)
            normal = F.layer_norm(x, x.shape[-1:], stage.norm.weight, stage.norm.bias, 1e-6)
            torch.testing.assert_close(maps[i], normal.permute(0, 3, 1, 2))
        wide = model.projection.widen
        expected = F.silu(wide.norm(wide.conv(maps[-1]))).mean((2, 3))
        torch.testing.assert_close(pooled, expected)
        torch.testing.assert_close(model(images), model.head(expected))
    assert [m.shape[2:] for m in maps] == [(17, 25), (9, 13), (5, 7), (3, 4)]


def test_heads_start_unmixed() -> None:
    """Before training the block is ordinary multi-head attention: mixing changes nothing."""
    model = PartialFormer(**SHAPE).eval()
    with torch.no_grad(), record(model, "*mixed") as maps:
        model(torch.randn(1, 3, 96, 96))
    where = "stages.2.blocks.1.attention."
    torch.testing.assert_close(maps[where + "mixed"], maps[where + "unmixed"].softmax(-1))


# Sizes and costs ----------------------------------------------------------------------------------


@cache
def cost(name: str, size: int = 224, **options) -> tuple[float, float]:
    with torch.device("meta"):
        model = timm.create_model(name, **options)
    figures = count_model(model, (3, size, size))
    return figures.params / 1e6, figures.macs / 1e9


@pytest.mark.parametrize(
    ("size", "params", "gmacs"),
    [("b0", 5.23, 0.404), ("b1", 8.14, 0.702), ("b2", 20.89, 1.891), ("b3", 35.85, 3.339), ("b4", 64.14, 6.779)],
)
def test_without_depthwise_convolution_in_the_mlp(size: str, params: float, gmacs: float) -> None:
    ours = cost(f"partialformer_{size}", mlp_dw=False)
    assert ours == (pytest.approx(params, abs=0.005), pytest.approx(gmacs, rel=0.002))


@pytest.mark.parametrize(("size", "gmacs"), [("b3", 3.27), ("b4", 6.59)])
def test_depthwise_stem(size: str, gmacs: float) -> None:
    assert cost(f"partialformer_{size}", stem_depthwise=True)[1] == pytest.approx(gmacs, abs=0.005)


def test_switches_that_change_no_parameters() -> None:
    params, gmacs = cost("partialformer_b1")
    assert cost("partialformer_b1", sqa_residual=False) == (params, gmacs)
    assert cost("partialformer_b1", max_foreground=24) == (params, gmacs)  # as many as there are at 224 pixels
    assert cost("partialformer_b1", project="needed")[0] == params
    assert cost("partialformer_b1", project="needed")[1] < 0.87 * gmacs
    assert cost("partialformer_b2", bottleneck_ratio=16)[0] / cost("partialformer_b2")[0] == pytest.approx(1.004, 1e-3)


def test_cost_at_a_larger_size() -> None:
    assert cost("partialformer_b1", 1024)[1] / cost("partialformer_b1")[1] == pytest.approx(25.3, rel=0.01)


# Taps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("project", ["all", "needed"])
def test_taps_show_who_is_foreground_and_what_is_read(project: str) -> None:
    model = tiny(project=project).eval()
    images = torch.randn(2, 3, 129, 95)
    with torch.no_grad():
        plain = model(images)
        with record(model) as maps:
            recorded = model(images)
    torch.testing.assert_close(plain, recorded, rtol=1e-5, atol=1e-5)
    names = ["score", "rank", "foreground", "positions", "unmixed", "mixed", "abstract", "background"]
    assert [n.rpartition(".")[2] for n in tap_names(model) if n.startswith("stages.2.blocks.1.")] == names
    score, rank, foreground, positions, unmixed, mixed, abstract, background = (
        maps[f"stages.2.blocks.1.attention.{name}"] for name in names
    )
    H, W, count = 9, 6, 54 // 8
    assert score.shape == rank.shape == foreground.shape == (2, H, W)
    assert foreground.dtype == torch.bool
    assert foreground.sum((1, 2)).tolist() == [count, count]
    assert torch.equal(foreground, rank < count)
    assert score[foreground].view(2, -1).amin(1).ge(score[~foreground].view(2, -1).amax(1)).all()
    assert torch.equal(positions, rank.flatten(1).argsort(1)[:, :count])
    assert unmixed.shape == mixed.shape == (2, 4, count + 1, count + 1)
    assert abstract.shape == background.shape == (2, 4, H, W)
    hidden = foreground[:, None].expand_as(background)
    assert not background[hidden].any()
    assert not abstract[~hidden].any()
    torch.testing.assert_close(background.sum((2, 3)), torch.ones(2, 4))
    torch.testing.assert_close(abstract.sum((2, 3)), mixed[:, :, 0, 1:].sum(2))


def test_background_is_fused_unless_its_tap_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, fused = [], F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: (calls.append(1), fused(*a, **k))[1])
    model, images = tiny().eval(), torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        with record(model, "*.foreground", "*.mixed", "*.abstract"):
            model(images)
        assert len(calls) == 5
        with record(model, "stages.2.blocks.0.attention.background"):
            model(images)
        assert len(calls) == 9


def test_equal_scores_are_taken_in_reading_order() -> None:
    layer = tiny().stages[1].blocks[0].attention
    assert layer.choose(torch.zeros(2, 8, 8)).tolist() == [[0, 1, 2], [0, 1, 2]]  # 0 is the abstract token


# Training and sizes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(mlp_dw=False, sqa_residual=False),
        dict(project="needed", max_foreground=3),
        dict(head_expansion=3, bottleneck_ratio=4),
        dict(fractions=(1, 0.5, 0.1, 1)),
        dict(head_width=0, stem_depthwise=True),
        dict(stem_stride=1, drop_path_rate=0.2, drop_rate=0.1),
    ],
    ids=str,
)
def test_options_train_and_take_any_size(options: dict) -> None:
    assert_trains(PartialFormer(**{**SHAPE, **options}), [(32, 32), (41, 67)])


def test_half_precision_keeps_scores_and_the_residual_stream_exact() -> None:
    model, images = tiny().eval(), torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        full = model(images)
        with torch.autocast("cpu", torch.bfloat16), record(model, "*.score") as maps:
            half = model(images)
    assert all(score.dtype == torch.float32 for score in maps.values())
    assert (half - full).norm() < 0.1 * full.norm()
    model.to(torch.bfloat16)(images.to(torch.bfloat16))


def test_pruned_and_stopped_models_have_no_wide_layer() -> None:
    model, images = tiny().eval(), torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        reference = model.features(images).maps
        assert model.forward_features(images).shape == (1, 24, 2, 2)
        early, _ = model.forward_intermediates(images, [1], stop_early=True)
        torch.testing.assert_close(early, reference[1])
        model.prune_intermediate_layers([1])
        torch.testing.assert_close(model(images), reference[1])
    assert not any(key.startswith(("projection", "head")) for key in model.state_dict())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(heads=(2, 5, 4, 4)), "5 heads cannot divide 24 channels"),
        (dict(heads=(2, 2)), r"heads=\(2, 2\) has 2 entries"),
        (dict(fractions=(0.5, 0.5, 0.5, 0)), "0 is not above 0 and at most 1"),
        (dict(fractions=(0.5, 1.5, 0.5, 1)), "1.5 is not above 0"),
        (dict(max_foreground=0), "max_foreground=0 given"),
        (dict(head_expansion=0.5), "head_expansion=0.5 given"),
        (dict(mlp_dw="yes"), "mlp_dw='yes' given; accepted: True, False"),
        (dict(project="some"), "accepted: 'all', 'needed'"),
        (dict(stem_stride=3), "accepted: 1, 2, 4"),
        (dict(dims=(15, 24, 32, 40), heads=(1, 2, 4, 4)), "the first must be even"),
        (dict(head_width=-1), "head_width=-1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_arguments_name_the_numbers(options: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        PartialFormer(**{**SHAPE, **options})
