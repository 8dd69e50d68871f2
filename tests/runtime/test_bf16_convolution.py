"""Gradients of convolutions whose kernels reach beyond the map, in bfloat16 on the CPU."""

import itertools

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from vitreous.runtime.bf16_convolution import every_tap_meets_the_map
from vitreous.runtime.device import autocast

CPU = torch.device("cpu")
SHAPES = [
    (side, kernel, stride, padding, dilation)
    for side, kernel, stride, padding, dilation in itertools.product(
        (1, 2, 3, 5), (1, 2, 3, 5), (1, 2), (0, 1, 2), (1, 2)
    )
    if side + 2 * padding > dilation * (kernel - 1)
]


@pytest.mark.parametrize(("side", "kernel", "stride", "padding", "dilation"), SHAPES)
def test_taps_that_meet_the_map_are_those_with_a_gradient(side, kernel, stride, padding, dilation):
    images, weight = torch.ones(1, 1, side, 9), torch.ones(1, 1, kernel, 1, requires_grad=True)
    options = dict(stride=(stride, 1), padding=(padding, 0), dilation=(dilation, 1))
    F.conv2d(images, weight, **options).sum().backward()
    assert every_tap_meets_the_map(images, weight, **options) == bool((weight.grad != 0).all())


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("side", [3, 4, 5, 9])
def test_padding_by_name_is_never_taken_for_safe_where_it_is_not(padding, side):
    images, weight = torch.ones(1, 1, side, side), torch.ones(1, 1, 3, 3, requires_grad=True)
    F.conv2d(images, weight, padding=padding).sum().backward()
    if every_tap_meets_the_map(images, weight, padding=padding):
        assert (weight.grad != 0).all()


@pytest.mark.parametrize("side", [1, 2, 3])
def test_gradients_are_defined_whatever_memory_held(side):
    conv, images = nn.Conv2d(16, 16, 3, stride=2, padding=1), torch.randn(2, 16, side, side)
    exact = torch.autograd.grad(conv(images).square().sum(), conv.weight)[0]
    for _ in range(5):
        held = [torch.full((16, 16, 3, 3), torch.nan, dtype=torch.bfloat16) for _ in range(20)]
        del held
        with autocast(CPU, "bf16"):
            loss = conv(images).float().square().sum()
        (found,) = torch.autograd.grad(loss, conv.weight)
        torch.testing.assert_close(found, exact, rtol=0.05, atol=0.05 * float(exact.abs().max()))


def test_other_convolutions_stay_in_bfloat16():
    conv = nn.Conv2d(4, 4, 3, padding=1)
    with autocast(CPU, "bf16"):
        assert conv(torch.randn(1, 4, 8, 8)).dtype == torch.bfloat16
        assert conv(torch.randn(1, 4, 1, 1)).dtype == torch.float32
    assert conv(torch.randn(1, 4, 1, 1)).dtype == torch.float32


def test_a_compiled_model_learns_under_it():
    model = torch.compile(nn.Sequential(nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.Flatten()), backend="aot_eager")
    with autocast(CPU, "bf16"):
        model(torch.randn(2, 4, 1, 1)).float().sum().backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("how", [{}, {"part": "mlp"}], ids=str)
def test_what_is_computed_twice_is_computed_alike(how):
    """The teacher's and the stages' maps of such small images have one cell."""
    model = timm.create_model("paca_tiny", num_classes=2).train()
    model.set_grad_checkpointing(**how)
    with autocast(CPU, "bf16"):
        loss = model(torch.randn(2, 3, 32, 32)).float().square().sum()
    loss.backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


def test_numbers_of_other_types_keep_theirs():
    conv = nn.Conv2d(4, 4, 3, padding=1).double()
    with autocast(CPU, "bf16"), torch.autocast("cpu", enabled=False):
        assert conv(torch.randn(1, 4, 1, 1, dtype=torch.float64)).dtype == torch.float64
