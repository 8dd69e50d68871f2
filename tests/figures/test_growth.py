"""How the work grows: what is claimed to be linear is, and what is not is told."""

from typing import Any

import pytest
import torch

import vitreous
from vitreous.figures.growth import COMPARED_MODELS, GROWTH_SIZES, OTHER_PARTS, Growth, exponent, work_at
from vitreous.registry import ENTRIES


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
