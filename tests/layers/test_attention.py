"""Attention in steps is the fused one, and is taken where it is faster."""

import pytest
import torch
import torch.nn.functional as F

from vitreous.layers import attention
from vitreous.layers.attention import attend, dot_product_attention
from vitreous.layers.tap import Tap, record


def parts(kind: torch.dtype, keys: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = torch.randn(2, 3, 300, 8), torch.randn(2, 3, keys, 8), torch.randn(2, 3, keys, 8)
    return q.to(kind), k.to(kind), v.to(kind)


@pytest.mark.parametrize("mask", [None, "closed", "added"])
def test_half_precision_is_computed_in_steps_as_exactly_as_fused(mask: str | None, monkeypatch) -> None:
    q, k, v = parts(torch.bfloat16)
    masks = {"closed": torch.arange(9)[None] < 6, "added": torch.randn(1, 1, 1, 9).bfloat16()}
    given = masks.get(mask)
    exact = F.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), given if given is None or given.dtype == torch.bool else given.double()
    )
    fused = F.scaled_dot_product_attention(q, k, v, given)
    monkeypatch.setattr(F, "scaled_dot_product_attention", None)  # calling it would fail
    found = dot_product_attention(q, k, v, given)
    assert found.dtype == torch.bfloat16
    # bfloat16 has 8 bits: scores, weights and result are rounded to them.
    limit = 4 * 2**-8 * exact.abs().max()
    assert (found - exact).abs().max() < limit
    assert (fused - exact).abs().max() < limit


@pytest.mark.parametrize(("kind", "keys"), [(torch.float32, 9), (torch.bfloat16, 300)])
def test_whole_precision_and_many_keys_stay_fused(kind: torch.dtype, keys: int, monkeypatch) -> None:
    monkeypatch.setattr(attention, "attention_weights", None)  # calling it would fail
    assert dot_product_attention(*parts(kind, keys)).dtype == kind


def test_maps_of_half_precision_sum_to_one_exactly_enough() -> None:
    """They are what is looked at, and are kept in single precision."""
    q, k, v = parts(torch.bfloat16)
    tap = Tap()
    with record(torch.nn.ModuleDict({"map": tap}), "map") as maps:
        found = attend(q, k, v, tap, (15, 20))
    torch.testing.assert_close(found, attend(q, k, v, tap, (15, 20)), rtol=0, atol=0)
    assert maps["map"].dtype == torch.float32
    torch.testing.assert_close(maps["map"].sum(2), torch.ones(2, 3, 15, 20))
