import pytest
import timm
import torch
from torch import nn

from vitreous.training.optim import build_optimizer, optimizer_tensors, restore_optimizer, set_lr, split_parameters


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
    decayed, exempt = split_parameters(model)
    assert all(parameter.ndim > 1 for _, parameter in decayed)
    assert {"pos_embed", "cls_token", "head.bias", "blocks.0.norm1.weight"} <= {name for name, _ in exempt}
    assert len(decayed) + len(exempt) == len(list(model.parameters()))
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    assert [name for part in split_parameters(model) for name, _ in part] == ["head.weight", "head.bias"]


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
