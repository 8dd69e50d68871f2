"""What is counted is what is alive; a pass without values takes as much as one with; recomputing saves half of it."""

import pytest
import timm
import torch
from torch import nn

import vitreous  # noqa: F401  (registers the models)
from vitreous.measurements.memory import Allocations, counting, pass_memory, peak_bytes, resident_growth


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


@pytest.mark.parametrize("name", ["paca_b0", "emsnet_xxtiny", "partialformer_b0", "test_convnext"])
@pytest.mark.parametrize("learns", [False, True])
def test_a_pass_without_values_takes_what_a_computed_one_takes(name: str, learns: bool) -> None:
    shallow = {} if name.startswith("test_") else {"depths": (1, 1, 1, 1)}
    model, images = timm.create_model(name, **shallow).train(learns), torch.randn(2, 3, 64, 64)

    def run(copied: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
        answer = copied(batch)
        return [answer] if learns else []

    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    moments = 2 * sum(parameter.nbytes for parameter in model.parameters())
    with torch.set_grad_enabled(learns):
        without = pass_memory(model, lambda: torch.randn(2, 3, 64, 64), run)
        with counting(model, images) as counted:
            for answer in run(model, images):
                answer.sum().backward()
    assert without.activations == pytest.approx(counted.peak, rel=0.03)
    assert without.whole == pytest.approx(counted.whole + weights + (moments if learns else 0), rel=0.03)
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())


def test_resident_memory_grows_by_what_is_made():
    grown = resident_growth(lambda: torch.ones(25_000_000), torch.device("cpu"))  # 100 MB
    assert grown is None or 0.9e8 < grown < 1.2e8


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
