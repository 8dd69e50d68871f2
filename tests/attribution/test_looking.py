"""What heads read from a place, as maps and as a method that is chosen by words."""

import pytest
import timm
import torch

from tests.support.families import awake, small
from vitreous.attribution.catalogue import find_method, methods_for
from vitreous.attribution.looking import AttentionFrom, read_from
from vitreous.errors import InputError

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["paca_tiny", "paca_b0", "xcit_nano_12_p16", "mat_1", "partialformer_b0"])
def test_what_is_read_lies_on_the_picture(name):
    model = awake(small(name, 1)).eval()
    found = read_from(model, IMAGES, (0.3, 0.9))
    assert found
    for layer, maps in found.items():
        assert maps.ndim == 4, layer
        assert (maps >= 0).all() or layer.endswith(".abstract")  # mixed heads may be negative
        torch.testing.assert_close(read_from(model, IMAGES[1:], (0.3, 0.9))[layer], maps[1:], rtol=1e-3, atol=1e-5)


def test_reading_clusters_is_reading_their_positions():
    """Attention to clusters sums to one, and so do the maps: what is read through them does too."""
    model = awake(small("paca_tiny", 1)).eval()
    maps = read_from(model, IMAGES, (0.0, 0.0))["stages.0.blocks.0.attention.map"]
    torch.testing.assert_close(maps.sum((2, 3)), torch.ones(maps.shape[:2]))


def test_a_method_is_chosen_by_layer_head_and_place():
    model = awake(small("paca_b0", 1)).eval()
    reads = read_from(model, IMAGES, (0.1, 0.9))["stages.2.blocks.0.attention.map"]
    chosen = find_method("attention stages.2.blocks.0 head 2 from 0.1 0.9", model)
    assert chosen == AttentionFrom("stages.2.blocks.0", 2, (0.1, 0.9))
    assert find_method(chosen.name, model) == chosen
    torch.testing.assert_close(chosen(model, IMAGES), reads[:, 1])
    assert find_method("attention head 1", model) == AttentionFrom(head=1)
    last = list(read_from(model, IMAGES).values())[-1]
    torch.testing.assert_close(find_method("attention", model)(model, IMAGES), last.mean(1))
    assert "attention" not in {method.name for method in methods_for(model)}, (
        "it is one of many, and says not what mattered"
    )


def test_of_a_foreign_transformer_too():
    model = timm.create_model("test_vit", num_classes=3, img_size=64).eval()
    heat = find_method("attention blocks.0 head 2", model)(model, IMAGES)
    assert heat.shape == (2, 4, 4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("attention stages.9", "part of no layer's name; layers: .*stages.0"),
        ("attention stages.0 head 7", "head 7 does not exist; .* has heads 1 to"),
        ("attention from 1.5 0", "outside of the picture"),
        ("attention the last one", "give a part of a layer's name"),
    ],
)
def test_what_does_not_exist_is_said(words, said):
    model = awake(small("paca_b0", 1)).eval()
    with pytest.raises(InputError, match=said):
        find_method(words, model)(model, IMAGES)


def test_channels_are_no_places():
    with pytest.raises(InputError, match="attention"):
        find_method("attention", timm.create_model("test_resnet", num_classes=3).eval())(
            timm.create_model("test_resnet", num_classes=3).eval(), IMAGES
        )
