import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from torch import nn

import vitreous  # noqa: F401  (registers the models)
from vitreous.errors import InputError
from vitreous.training.optim import (
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
