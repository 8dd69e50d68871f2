"""torchinfo and fvcore, which count parameters and work by watching the layers of a model."""

import pytest
import torch
from fvcore.nn import FlopCountAnalysis
from torchinfo import summary

from tests.support.families import FAMILIES, small
from vitreous.figures.counting import count_model

KINDS = (*FAMILIES, "paca_tiny_blockwise")
SIZE = (3, 96, 128)
CIFAR = (3, 32, 32)  # whose strides are a quarter; in larger images attention is most of the work


@pytest.mark.parametrize("name", KINDS)
def test_torchinfo_counts_every_parameter_once(name: str) -> None:
    model = small(name, 2)
    found = summary(model, (1, *SIZE), verbose=0)
    assert found.total_params == found.trainable_params == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_fvcore_counts_the_work(name: str) -> None:
    model, size = small(name, 1).eval(), CIFAR if "cifar" in name else SIZE
    analysis = FlopCountAnalysis(model, torch.randn(1, *size)).unsupported_ops_warnings(False)
    work = analysis.uncalled_modules_warnings(False).total()
    # It counts norms and interpolation, which we leave out, and not fused attention, which we count.
    assert work == pytest.approx(count_model(model, size).macs, rel=0.2)
