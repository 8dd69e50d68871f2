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


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "cpu_multiplies_bf16", lambda: True)


@pytest.mark.parametrize("mask", [None, "closed", "added"])
@pytest.mark.usefixtures("able")
def test_learning_in_bfloat16_takes_steps_as_exact_as_the_fused_kernel(mask: str | None, monkeypatch) -> None:
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


@pytest.mark.parametrize(
    ("kind", "keys", "learns", "multiplies"),
    [
        (torch.float32, 9, True, True),
        (torch.float16, 9, True, True),
        (torch.bfloat16, 300, True, True),
        (torch.bfloat16, 9, False, True),
        (torch.bfloat16, 9, True, False),
    ],
    ids=["whole precision", "float16", "many keys", "inference", "a processor without"],
)
def test_all_else_stays_fused(kind: torch.dtype, keys: int, learns: bool, multiplies: bool, monkeypatch) -> None:
    monkeypatch.setattr(attention, "cpu_multiplies_bf16", lambda: multiplies)
    monkeypatch.setattr(attention, "attention_weights", None)  # calling it would fail
    with torch.set_grad_enabled(learns):
        assert dot_product_attention(*parts(kind, keys)).dtype == kind


def test_large_scores_do_not_overflow() -> None:
    q = torch.full((1, 1, 4, 64), 40.0, dtype=torch.float16)
    assert attention.attention_weights(q, q).isfinite().all()


@pytest.mark.usefixtures("able")
def test_a_training_step_is_compiled_as_a_whole() -> None:
    q, k, v = (part.requires_grad_() for part in parts(torch.bfloat16))
    torch._dynamo.reset()
    found = torch.compile(dot_product_attention, fullgraph=True, backend="eager")(q, k, v)
    torch.testing.assert_close(found, dot_product_attention(q, k, v))


@pytest.mark.usefixtures("able")
def test_maps_of_half_precision_sum_to_one_exactly_enough() -> None:
    """They are what is looked at, and are kept in single precision."""
    q, k, v = parts(torch.bfloat16)
    tap = Tap()
    with record(torch.nn.ModuleDict({"map": tap}), "map") as maps:
        found = attend(q, k, v, tap, (15, 20))
    torch.testing.assert_close(found, attend(q, k, v, tap, (15, 20)), rtol=0, atol=0)
    assert maps["map"].dtype == torch.float32
    torch.testing.assert_close(maps["map"].sum(2), torch.ones(2, 3, 15, 20))
