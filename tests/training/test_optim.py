import doctest
import math

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.optim import param_groups_layer_decay
from torch import nn

import vitreous  # noqa: F401  (registers the models)
from vitreous.errors import InputError
from vitreous.heads.segment import build_segmenter
from vitreous.registry import create_model
from vitreous.training import optim
from vitreous.training.optim import (
    Schedule,
    build_optimizer,
    exempt_parameters,
    layer_scales,
    optimizer_tensors,
    restore_optimizer,
    set_lr,
)


def small_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 6 * 6, 4))


def take_steps(model: nn.Module, optimizer, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(number))
        set_lr(optimizer, 1 / (1 + number))
        optimizer.zero_grad(set_to_none=True)
        model(images.contiguous(memory_format=torch.channels_last)).square().mean().backward()
        optimizer.step()


def test_only_matrices_and_kernels_decay():
    model = timm.create_model("test_vit", num_classes=3)
    exempt = exempt_parameters(model)
    assert {"pos_embed", "cls_token", "head.bias", "blocks.0.norm1.weight"} <= exempt
    assert all(parameter.ndim > 1 for name, parameter in model.named_parameters() if name not in exempt)
    optimizer = build_optimizer(model, lr=1e-3, weight_decay=0.05)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert decays[id(parameter)] == (0.0 if name in exempt else 0.05), name


@pytest.mark.parametrize("name", ["paca_tiny", "xcit_nano_12_p16", "emsnet_xxtiny", "mat_1", "partialformer_b0"])
def test_tokens_positions_and_temperatures_do_not_decay(name):
    model = timm.create_model(name)
    special = [name for name, _ in model.named_parameters() if name.endswith(("token", "position", "temperature"))]
    assert set(special) <= exempt_parameters(model)
    assert bool(special) == (name in ("xcit_nano_12_p16", "mat_1", "partialformer_b0"))


def test_frozen_parameters_are_left_out():
    model = timm.create_model("test_vit", num_classes=3).requires_grad_(False)
    model.head.requires_grad_(True)
    optimizer = build_optimizer(model, lr=1e-3, weight_decay=0.05)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1]


@pytest.mark.parametrize("name", ["paca_b0", "test_vit", "test_resnet"])
def test_layers_learn_slower_the_earlier_they_are(name):
    """As timm's own grouping has it, for models of ours and of timm."""
    model = timm.create_model(name, num_classes=3)
    expected = {
        id(parameter): (group["lr_scale"], group["weight_decay"])
        for group in param_groups_layer_decay(
            model, weight_decay=0.05, layer_decay=0.5, no_weight_decay_list=exempt_parameters(model)
        )
        for parameter in group["params"]
    }
    optimizer = build_optimizer(model, lr=1e-2, weight_decay=0.05, layer_decay=0.5)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            scale, decay = expected[id(parameter)]
            assert group["initial_lr"] == group["lr"] == pytest.approx(1e-2 * scale)
            assert group["weight_decay"] == decay
    scales = layer_scales(model, 0.5)
    assert max(scales.values()) == scales[f"{model.pretrained_cfg['classifier']}.weight"] == 1
    assert min(scales.values()) < 0.2
    assert layer_scales(model, 1.0) == {}


def test_layers_of_a_model_that_does_not_tell_them():
    with pytest.raises(InputError, match=r"layer_decay 0\.5 given, but Sequential"):
        build_optimizer(small_model(), lr=1e-2, weight_decay=0.0, layer_decay=0.5)


def test_betas_and_eps_reach_the_optimiser():
    optimizer = build_optimizer(small_model(), lr=1e-2, weight_decay=0.0, betas=(0.5, 0.6), eps=1e-3)
    assert all(group["betas"] == (0.5, 0.6) and group["eps"] == 1e-3 for group in optimizer.param_groups)


def test_decay_shrinks_weights_without_gradient():
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone(), model.bias.detach().clone()
    optimizer = build_optimizer(model, lr=0.1, weight_decay=0.5)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.allclose(model.weight, before[0] * (1 - 0.1 * 0.5))
    assert torch.equal(model.bias, before[1])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_restored_optimizer_goes_on_to_the_same_bits(layout):
    model = small_model().to(memory_format=layout)
    optimizer = build_optimizer(model, lr=1e-2, weight_decay=0.05)
    take_steps(model, optimizer, 3)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    # contiguous copies, as they come back from a file
    memory = {
        key: value.clone(memory_format=torch.contiguous_format)
        for key, value in optimizer_tensors(model, optimizer).items()
    }
    take_steps(model, optimizer, 3, first=3)

    again = small_model().to(memory_format=layout)
    again.load_state_dict(weights)
    restored = build_optimizer(again, lr=1e-2, weight_decay=0.05)
    restore_optimizer(again, restored, memory)
    take_steps(again, restored, 3, first=3)
    for key, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key
    for key, value in optimizer_tensors(model, optimizer).items():
        assert torch.equal(value, optimizer_tensors(again, restored)[key]), key


def with_head() -> nn.Module:
    arguments = dict(dims=(8, 16, 24, 32), depths=(1, 1, 1, 1), heads=(1, 2, 3, 4), clusters=(4, 4, 4, 0))
    return build_segmenter(create_model("paca_tiny", features_only=True, **arguments), "fpn", 3, pyramid=8, width=8)


def test_a_head_comes_after_the_last_layer_and_has_a_rate_of_its_own():
    model = with_head()
    rates = {}
    optimizer = build_optimizer(model, lr=1.0, weight_decay=0.1, layer_decay=0.5, head_lr=3.0)
    for group in optimizer.param_groups:
        rates |= {id(parameter): group["initial_lr"] for parameter in group["params"]}
    found = {name: rates[id(parameter)] for name, parameter in model.named_parameters()}
    assert {rate for name, rate in found.items() if name.startswith("decoder.")} == {3.0}
    body = {name: rate for name, rate in found.items() if name.startswith("levels.")}
    assert max(body.values()) == 0.5
    assert found["levels.body.model.stages.0.blocks.0.norm1.weight"] < max(body.values())


def test_what_a_backbone_exempts_from_decay_is_exempt_below_a_head_too():
    model = with_head()
    backbone = model.levels.backbone
    named = {f"levels.body.model.{name}" for name in backbone.no_weight_decay()}
    assert named <= exempt_parameters(model)
    assert "decoder.classifier.weight" not in exempt_parameters(model)


whole = st.integers(0, 300)
share = st.floats(0, 1)


def test_example_in_the_docstring():
    assert doctest.testmod(optim).failed == 0


@given(
    shape=st.sampled_from(["cosine", "poly", "step"]), steps=st.integers(1, 300), warmup=whole, start=share, floor=share
)
def test_rises_then_falls_to_the_floor_and_stays(shape, steps, warmup, start, floor):
    factor = Schedule(shape, steps=steps, warmup=warmup, start=start, floor=floor, milestones=(50, 100), power=0.9)
    warmup = min(warmup, steps)
    factors = [factor(step) for step in range(steps + 20)]
    assert factors[:warmup] == sorted(factors[:warmup])
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)
    assert all(start <= value <= 1 + 1e-9 and value > 0 for value in factors[:warmup])
    assert math.isclose(max(factors), 1) or (shape == "step" and warmup > 0)
    assert factors[steps:] == [floor] * 20


def test_shapes_by_their_formulas():
    cosine = Schedule("cosine", steps=100, floor=0.2)
    assert cosine(25) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)
    poly = Schedule("poly", steps=110, warmup=10, power=0.9)
    assert poly(60) == pytest.approx(0.5**0.9)
    step = Schedule("step", steps=12, milestones=(8, 11), floor=0.05)
    assert [step(number) for number in (0, 7, 8, 10, 11)] == pytest.approx([1, 1, 0.1, 0.1, 0.05])


def test_warm_up_starts_where_it_is_told_to():
    factors = [Schedule("cosine", steps=100, warmup=4, start=0.2)(step) for step in range(4)]
    assert factors == pytest.approx([0.4, 0.6, 0.8, 1.0])
