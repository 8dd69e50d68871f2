"""Relevance is divided up, and nothing of it is lost."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.families import FAMILIES, awake, small
from vitreous.attribution.catalogue import find_method
from vitreous.attribution.relevance import FixedFactors, LayerRelevance, relevance, spread_out_evenly
from vitreous.attribution.target import ClassTarget
from vitreous.errors import InputError

CLASSES = ClassTarget(labels=torch.tensor([1, 3]))


@pytest.mark.parametrize("name", FAMILIES)
def test_relevance_sums_to_the_logit(name: str) -> None:
    """Exactly, but for sums of float32; the demand was one in a hundred."""
    model = awake(small(name, 2)).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        logits = CLASSES.on("logit")(model(images))
    found = relevance(model, images, CLASSES)
    torch.testing.assert_close(found.total, logits, rtol=1e-3, atol=1e-3 * logits.abs().max().item())
    partial = relevance(model, images, CLASSES, stage=2)
    torch.testing.assert_close(partial.total, logits, rtol=1e-3, atol=1e-3 * logits.abs().max().item())
    for words in ("lrp", "lrp stage 2"):  # and so does the map that is shown
        heat = find_method(words, model)(model, images, CLASSES)
        torch.testing.assert_close(heat.sum((1, 2)), logits, rtol=1e-3, atol=1e-3 * logits.abs().max().item())


def test_rules_change_no_value() -> None:
    model = awake(small("emsnet_xxtiny", 1)).eval()
    images = torch.randn(1, 3, 64, 64)
    for fixed in (True, False):
        with FixedFactors(fixed), torch.enable_grad():
            ruled = model(images.requires_grad_())
        torch.testing.assert_close(ruled, model(images), rtol=1e-4, atol=1e-4)


def test_a_linear_model_is_divided_into_its_terms() -> None:
    weight, bias, x = torch.randn(2, 5), torch.randn(2), torch.randn(1, 5).requires_grad_()
    with FixedFactors(True) as rules:
        y = F.linear(F.relu(x), weight, bias)[0, 0]
    slope, constant = torch.autograd.grad(y, [x, rules.constants[0].value])
    torch.testing.assert_close(x * slope, F.relu(x) * weight[:1])
    torch.testing.assert_close((rules.constants[0].value * constant).sum(), bias[0])


def test_a_product_of_two_things_gives_each_half() -> None:
    x, y = torch.randn(4).requires_grad_(), torch.randn(4).requires_grad_()
    with FixedFactors(True):
        product = (x * y).sum()
    left, right = torch.autograd.grad(product, [x, y])
    torch.testing.assert_close(x * left, x * y / 2)
    torch.testing.assert_close(y * right, x * y / 2)


@pytest.mark.parametrize("grid", [(6, 6), (7, 5), (2, 2)])
def test_maps_keep_their_sum_on_another_grid(grid: tuple[int, int]) -> None:
    maps = torch.randn(2, 4, 4)
    torch.testing.assert_close(spread_out_evenly(maps, grid).sum((1, 2)), maps.sum((1, 2)), rtol=1e-4, atol=1e-4)


def test_weights_and_their_gradients_are_left_as_they_were() -> None:
    model = awake(small("paca_tiny", 1)).eval()
    model.head.weight.requires_grad_(False)
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    heat = LayerRelevance()(model, torch.randn(2, 3, 64, 64), torch.tensor([0, 1]))
    assert heat.shape == (2, 16, 16)
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_names_and_bad_input() -> None:
    assert LayerRelevance().name == "lrp"
    assert LayerRelevance(attention=True, constants=False, stage=2).name == "attn_lrp_patches stage 2"
    model = small("paca_tiny", 1).eval()
    assert find_method("attn_lrp stage 2", model) == LayerRelevance(attention=True, stage=2)
    with pytest.raises(InputError, match="stage 9 does not exist"):
        find_method("lrp stage 9", model)
    with pytest.raises(InputError, match="unknown method 'lrp stages'"):
        find_method("lrp stages", model)
    with pytest.raises(InputError, match="stage 9 does not exist"):
        LayerRelevance(stage=9)(model, torch.randn(1, 3, 64, 64), 0)
