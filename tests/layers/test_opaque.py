"""Stages that compilers call as one operation give what they give in eager, for the model at hand and as it is now."""

import copy
import gc

import pytest
import torch
from torch import nn

from tests.support.families import awake, small
from vitreous.clusters.gates import gated
from vitreous.layers import opaque
from vitreous.layers.tap import record

TWO_STAGES = dict(dims=(24, 48), depths=(2, 1), mlp_ratios=(2, 2), heads=(2, 4))


def paca(name: str = "paca_tiny", **options) -> nn.Module:
    return awake(small(name, 1, **TWO_STAGES, **{"clusters": (10, 0), **options})).eval()


def compiled(model: nn.Module) -> nn.Module:
    torch._dynamo.reset()
    return torch.compile(model, fullgraph=True, backend="aot_eager")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a stage was computed as one operation: the number of images each time."""
    found: list[int] = []
    inferred = type(paca().stages[0]).inferred
    monkeypatch.setattr(
        type(paca().stages[0]), "inferred", lambda stage, x, given: found.append(len(x)) or inferred(stage, x, given)
    )
    return found


@pytest.mark.parametrize(
    "model",
    [
        paca(),
        paca("paca_tiny_teacher", clusters=(10, 9), teacher=dict(depths=(1, 1))),
        pytest.param(paca(recluster=1), marks=pytest.mark.slow),
        pytest.param(paca(position_size=64), marks=pytest.mark.slow),
    ],
    ids=["shared", "teacher", "anew", "positions"],
)
def test_inference_is_that_of_eager(model: nn.Module, calls: list[int]) -> None:
    program = compiled(model)
    for shape in ((2, 3, 64, 96), (1, 3, 70, 65)):
        calls.clear()
        images = torch.randn(shape)
        with torch.inference_mode():
            found = program(images)
            assert calls, "no stage was hidden"
            torch.testing.assert_close(found, model(images), rtol=1e-4, atol=1e-5)


def test_threads_have_images_of_their_own(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opaque, "threads_allowed", lambda x: True)
    monkeypatch.setattr(opaque, "concurrent_pieces", lambda: 2)
    model, images = paca("paca_tiny_teacher", clusters=(10, 9), teacher=dict(depths=(1, 1))), torch.randn(5, 3, 64, 64)
    with torch.inference_mode():
        found = compiled(model)(images)
        assert sorted(calls) == [2, 2, 3, 3]
        torch.testing.assert_close(found, model(images), rtol=1e-4, atol=1e-5)


def test_one_program_serves_all_models_of_a_kind() -> None:
    """Copies too, and ones that lie where another was: as many programs as models would exceed the limit."""
    torch._dynamo.reset()
    call = torch.compile(lambda model, images: model(images), fullgraph=True, backend="aot_eager")
    images, first = torch.randn(2, 3, 64, 64), paca()
    with torch._dynamo.config.patch(recompile_limit=2), torch.inference_mode():
        for scale in range(1, 5):
            model = copy.deepcopy(first)
            for parameter in model.parameters():
                parameter.mul_(1 + 0.1 * scale)
            torch.testing.assert_close(call(model, images), model(images), rtol=1e-4, atol=1e-5)
            del model
            gc.collect()


@pytest.mark.parametrize("side", [64, pytest.param(224, marks=pytest.mark.slow)])
def test_weights_that_a_program_puts_in_place_are_used(side: int) -> None:
    model, images = paca(), torch.randn(2, 3, side, side)
    others = {name: 1.3 * parameter.detach() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        expected = torch.func.functional_call(model, others, (images,))
        torch._dynamo.reset()
        call = torch.compile(
            lambda weights, x: torch.func.functional_call(model, weights, (x,)), fullgraph=True, backend="aot_eager"
        )
        torch.testing.assert_close(call(others, images), expected, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(expected, model(images))


def test_a_hook_may_keep_and_replace_what_it_sees() -> None:
    model, images = paca(), torch.randn(2, 3, 64, 64)
    kept = []
    handle = model.stages[0].blocks[0].register_forward_hook(lambda block, given, out: kept.append(out[0]))
    with torch.no_grad():
        program = compiled(model)
        program(images)
        before = kept[0].clone()
        program(torch.randn(2, 3, 64, 64))
        assert torch.equal(kept[0], before)
        handle.remove()
        for block in model.stages[0].blocks:  # the stage then gives what it was given
            block.register_forward_hook(lambda block, given, out: (given[0], *out[1:]))
        torch.testing.assert_close(program(images), model(images), rtol=1e-4, atol=1e-5)


def test_weights_gates_and_taps_are_those_of_the_call() -> None:
    model, images = paca(), torch.randn(2, 3, 64, 64)
    program = compiled(model)
    with torch.no_grad():
        before = program(images)
        with gated(model, 1, value_gate=torch.zeros(10)):
            expected = model(images)
            assert not torch.allclose(expected, before)
            torch.testing.assert_close(program(images), expected, rtol=1e-4, atol=1e-5)
        with record(model, "stages.0.clusters") as maps:
            program(images)
        assert maps["stages.0.clusters"].shape == (2, 10, 16, 16)
        model.stages[0].blocks[1].mlp.fc2.bias.add_(3.0)
        torch.testing.assert_close(program(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("closed", [False, True])
def test_what_the_compiled_function_itself_switches_counts(closed: bool) -> None:
    model, images = paca(), torch.randn(2, 3, 64, 64)
    attention = model.stages[0].blocks[0].attention

    def without_clusters(x: torch.Tensor) -> torch.Tensor:
        if closed:
            attention.closed = tuple(range(9))
            found = model(x)
            attention.closed = ()
            return found
        with gated(model, 1, value_gate=torch.zeros(10)):
            return model(x)

    with torch.no_grad():
        expected = without_clusters(images)
        assert not torch.allclose(expected, model(images))
        torch._dynamo.reset()
        found = torch.compile(without_clusters, backend="aot_eager")(images)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_with_gradients_and_in_training_nothing_is_hidden(calls: list[int]) -> None:
    model, images = paca(), torch.randn(2, 3, 64, 64)
    compiled(model)(images).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.stages.parameters())
    with torch.no_grad():
        compiled(model.train())(images)
    assert not calls
