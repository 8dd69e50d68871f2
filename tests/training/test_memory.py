"""`--grad-checkpointing` saves half the memory of activations, or nearly, and the gradients stay the same."""

import pytest
import timm
import torch
from torch import nn

import vitreous  # noqa: F401  (registers the models)
from benchmarks.memory import Allocations, peak_bytes


def test_the_count_is_of_what_is_alive():
    x = torch.randn(1000)  # 4000 bytes
    with Allocations() as counted:
        y = x * 2
        z = y.view(10, 100) + 1  # a view is no memory
        del y
        assert (counted.alive, counted.peak) == (4000, 8000)
        z.mul_(2)
        assert counted.peak == 8000
    assert z.shape == (10, 100)


def test_parameters_and_their_gradients_are_no_activations():
    layer = nn.Linear(1000, 1000, bias=False)  # 4 MB of parameters, and as much of gradient while it is made
    assert peak_bytes(layer, torch.randn(1, 1000)) < 4.1e6


def gradients(model: nn.Module, images: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad(set_to_none=True)
    torch.manual_seed(0)  # stochastic depth
    model(images).square().sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("size", [96, pytest.param(512, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("part", "share"), [("blocks", 0.5), ("mlp", 0.65)])
def test_recomputing_saves_memory_and_changes_no_gradient(size, part, share):
    model, images = timm.create_model("paca_small").train(), torch.randn(1, 3, size, size)
    plain, expected = peak_bytes(model, images), gradients(model, images)
    model.set_grad_checkpointing(True, part=part)
    assert peak_bytes(model, images) < share * plain
    for name, gradient in gradients(model, images).items():
        assert torch.equal(gradient, expected[name]), name
