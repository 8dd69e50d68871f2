"""What is counted: every product of matrices, whichever kernel computes it."""

import pytest
import timm
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import vitreous
from vitreous.errors import InputError
from vitreous.figures.counting import count_model, work_by_module

SHORT = dict(depths=(1, 1, 1, 1))
CASES = [
    ("paca_tiny", SHORT),
    ("paca_tiny_mlp", SHORT),
    ("paca_b0", SHORT),
    ("xcit_nano_12_p16", dict(depth=4)),
    ("emsnet_xxtiny", SHORT),
    ("mat_1", SHORT),
    ("partialformer_b0", SHORT),
    ("partialformer_b0", SHORT | dict(project="needed")),
]
PRODUCTS = {"addbmm", "addmv", "addr", "bilinear", "chain_matmul", "dot", "einsum", "linear", "matmul", "mv", "vdot"}


def build(name: str, **arguments: object) -> torch.nn.Module:
    with torch.device("meta"):
        return timm.create_model(name, **arguments).eval()


class Operations(TorchDispatchMode):
    """The names of operations that have no formula for their cost."""

    def __init__(self) -> None:
        super().__init__()
        self.uncounted: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket not in flop_registry:
            self.uncounted.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_no_product_goes_uncounted(name: str, arguments: dict) -> None:
    with Operations() as operations, torch.no_grad():
        build(name, **arguments)(torch.empty(1, 3, 224, 224, device="meta"))
    assert "add" in operations.uncounted
    assert not operations.uncounted & PRODUCTS


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_fused_attention_counts_as_much_as_the_explicit_one(name: str, arguments: dict) -> None:
    """While taps listen, attention is written out as matrix products."""
    model = build(name, **arguments)
    fused = count_model(model, (3, 224, 224)).macs
    with vitreous.record(model):
        explicit = count_model(model, (3, 224, 224)).macs
    # PartialFormer leaves out one key of hundreds when it shows its weights; all others agree to the last product.
    assert explicit == pytest.approx(fused, rel=1e-4 if "partialformer" in name else 0)


def test_macs_of_a_linear_layer() -> None:
    assert count_model(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)), (3, 2, 2)) == (65, 60)


def test_macs_of_grouped_and_transposed_convolutions() -> None:
    depthwise, up = torch.nn.Conv2d(6, 6, 3, padding=1, groups=6), torch.nn.ConvTranspose2d(6, 4, 2, 2)
    counted = work_by_module(torch.nn.Sequential(depthwise, up), (6, 5, 7))
    assert counted == {"": 0, "0": 5 * 7 * 6 * 9, "1": 5 * 7 * 6 * 4 * 4}


def test_work_is_told_by_the_module_that_does_it() -> None:
    counted = work_by_module(build("paca_b0", depths=(1, 1, 1, 1)), (3, 64, 64))
    patches, dim = 2 * 2, 256  # of the last stage, at stride 32, which has no clusters
    assert counted["stages.3.blocks.0.attention"] == 2 * patches**2 * dim
    assert counted["stages.3.blocks.0.attention.q"] == patches * dim**2
    assert min(counted.values()) == 0


def test_sizes_a_model_cannot_take_are_explained() -> None:
    with pytest.raises(InputError, match=r"cannot take images of 64x64 pixels .* dynamic_img_size=True"):
        count_model(build("vit_tiny_patch16_224"), (3, 64, 64))
    with pytest.raises(InputError, match="the smallest this model can take is 32x32"):
        count_model(build("paca_b0"), (3, 16, 16))
