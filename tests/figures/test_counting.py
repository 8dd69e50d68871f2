"""What is counted: every product of matrices, whichever kernel computes it."""

from typing import Any

import pytest
import timm
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import vitreous
from vitreous.errors import InputError
from vitreous.figures.counting import (
    COMPARED_MODELS,
    GROWTH_SIZES,
    OTHER_PARTS,
    Growth,
    count_figures,
    count_model,
    exponent,
    read_table,
    work_at,
    work_by_module,
)
from vitreous.registry import ENTRIES

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


MODELS = vitreous.list_models()
LARGE = 30e6  # parameters; counting such a model takes seconds, and it has the layers of the smaller ones of its family


def test_every_model_is_in_the_table_in_order() -> None:
    assert list(read_table()) == MODELS, "run: make figures"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (read_table()[name]["params"] > LARGE)) for name in MODELS]
)
def test_row_is_what_is_counted(name: str) -> None:
    assert read_table()[name] == count_figures(name), "run: make figures"


def grow(name: str, **arguments: Any) -> Growth:
    with torch.device("meta"):
        model = vitreous.create_model(name, **arguments)
    return Growth(tuple(work_at(model, size) for size in GROWTH_SIZES))


def test_exponent_of_powers() -> None:
    pixels = [size * size for size in GROWTH_SIZES]
    assert exponent(pixels) == pytest.approx(1)
    assert exponent([7 * count**2 for count in pixels]) == pytest.approx(2)
    assert exponent([count**2 for count in pixels[-2:]]) == pytest.approx(2)


def test_parts_that_outgrow_the_image_are_named_and_blocks_taken_together() -> None:
    work = tuple({"blocks.0.a": n * n, "blocks.1.a": n * n, "blocks.0.b": 5 * n, "": 0} for n in (1, 4, 16, 64))
    assert Growth(work).parts() == {"blocks.*.a": (2, 32, 512, 8192), OTHER_PARTS: (5, 20, 80, 320)}
    assert Growth(tuple({"a": n} for n in (1, 4, 16, 64))).parts() == {OTHER_PARTS: (1, 4, 16, 64)}


@pytest.mark.parametrize(
    ("name", "arguments", "limit"),
    [
        ("paca_tiny_blockwise", {}, 1.05),
        ("xcit_tiny_12_p16", {}, 1.05),
        pytest.param("emsnet_tiny", {}, 1.05, marks=pytest.mark.slow),
        pytest.param("mat_2", {}, 1.1, marks=pytest.mark.slow),
        pytest.param("partialformer_b1", dict(max_foreground=64), 1.1, marks=pytest.mark.slow),
    ],
)
def test_claims_of_linear_work(name: str, arguments: dict[str, Any], limit: float) -> None:
    assert (name, arguments) in COMPARED_MODELS
    macs = grow(name, **arguments).macs
    assert exponent(macs) <= limit
    assert exponent(macs[-2:]) <= limit


@pytest.mark.parametrize(
    ("name", "arguments", "fitted", "last"),
    [
        ("paca_b0_pure", {}, 1.94, 1.99),
        ("partialformer_b1", {}, 1.15, 1.32),
        ("vit_tiny_patch16_224", dict(dynamic_img_size=True), 1.60, 1.87),
    ],
)
def test_what_is_not_linear_is_told(name: str, arguments: dict[str, Any], fitted: float, last: float) -> None:
    assert (name, arguments) in COMPARED_MODELS
    macs = grow(name, **arguments).macs
    assert (exponent(macs), exponent(macs[-2:])) == pytest.approx((fitted, last), abs=0.005)  # the printed digits


def test_the_steep_part_of_paca_is_its_stage_without_clusters() -> None:
    growth = grow("paca_tiny")
    attention = [2 * 2 * (size // 32) ** 4 * 384 for size in GROWTH_SIZES]  # 2 blocks, 2 products, 384 channels
    parts = growth.parts()
    assert parts.keys() == {"stages.3.blocks.*.attention", OTHER_PARTS}
    assert parts["stages.3.blocks.*.attention"] == tuple(attention)
    assert [sum(part) for part in zip(*parts.values(), strict=True)] == list(growth.macs)
    assert exponent(parts[OTHER_PARTS]) <= 1.0


def test_every_family_is_compared() -> None:
    assert {ENTRIES[name].family for name, _ in COMPARED_MODELS if name in ENTRIES} == {
        e.family for e in ENTRIES.values()
    }
    assert all(entry.family.growth for entry in ENTRIES.values())
