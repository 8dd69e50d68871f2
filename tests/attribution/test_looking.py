"""What heads read from a place, as maps and as a method that is chosen by words."""

import itertools

import pytest
import timm
import torch

from tests.support.families import FAMILIES, ONE_OF_EACH, awake, small
from vitreous.attribution.attention import record_attention
from vitreous.attribution.catalogue import find_method, methods_for
from vitreous.attribution.looking import AttentionFrom, layers_read, read_from
from vitreous.errors import InputError
from vitreous.layers.tap import record

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_read_lies_on_the_picture(name):
    model = awake(small(name, 1)).eval()
    found = read_from(model, IMAGES, (0.3, 0.9))
    assert list(found) == list(layers_read(model))
    assert found
    for layer, maps in found.items():
        assert maps.ndim == 4, layer
        assert (maps >= 0).all() or layer.endswith((".abstract", ".mixed"))  # mixed heads may be negative
        torch.testing.assert_close(read_from(model, IMAGES[1:], (0.3, 0.9))[layer], maps[1:], rtol=1e-3, atol=1e-5)


def test_layers_stand_in_the_order_of_the_network_and_what_tells_most_of_a_place_is_last():
    mat, partial = (layers_read(small(name, 1)) for name in ("mat_1", "partialformer_b0"))
    assert [name.rpartition(".")[2] for name in mat] == ["abstract_attn", "fusion_attn", "window_attn"] * 2
    assert [name.rpartition(".")[2] for name in partial] == ["abstract", "background", "mixed"] * 4
    assert [name.split(".")[1] for name in partial] == [stage for stage in "0123" for _ in range(3)]


def test_reading_clusters_is_reading_their_positions():
    """Attention to clusters sums to one, and so do the maps: what is read through them does too."""
    model = awake(small("paca_tiny", 1)).eval()
    maps = read_from(model, IMAGES, (0.0, 0.0))["stages.0.blocks.0.attention.map"]
    torch.testing.assert_close(maps.sum((2, 3)), torch.ones(maps.shape[:2]))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_without_a_query_it_is_the_mean_over_all(name):
    model = awake(small(name, 1)).eval()
    places = [((x + 0.5) / 4, (y + 0.5) / 4) for y in range(4) for x in range(4)]
    each = [read_from(model, IMAGES, place) for place in places]
    whole = read_from(model, IMAGES, None)
    for layer, by_place in layers_read(model).items():
        if whole[layer].shape[2:] == (4, 4) or not by_place:
            mean = torch.stack([found[layer] for found in each]).mean(0)
            torch.testing.assert_close(whole[layer], mean, rtol=1e-3, atol=1e-5, msg=layer)


@pytest.mark.parametrize(("query", "place"), [((0.0, 0.0), (0, 0)), ((0.35, 0.6), (12, 8)), ((0.99, 0.99), (19, 24))])
def test_cells_of_emsnet_lie_where_they_were_pooled(query, place):
    """Cells of 4x4 positions in windows of 3x3 cells, every other one a middle; and of 6x6; the last ones cut short."""
    model = awake(small("emsnet_xxtiny", 1)).eval()
    images = torch.randn(1, 3, 80, 100)  # 20 x 25 positions in the first stage
    layer = "stages.0.blocks.0.mixer.dynamic."
    with torch.no_grad(), record(model, f"{layer}*") as seen:
        model(images)
    local, whole = seen[f"{layer}local_attention.map"][0], seen[f"{layer}global_attention.map"][0]
    found = read_from(model, images, query)
    expected = torch.zeros(local.shape[0], 5 * 4, 7 * 4)
    for row, column, asked, key in itertools.product(range(local.shape[3]), range(local.shape[4]), range(9), range(9)):
        (y, x), (down, across) = ((2 * row - 1 + number // 3, 2 * column - 1 + number % 3) for number in (asked, key))
        if (y, x) == (place[0] // 4, place[1] // 4) and 0 <= down < 5 and 0 <= across < 7:
            cell = expected[:, 4 * down : 4 * down + 4, 4 * across : 4 * across + 4]
            cell += local[:, asked, key, row, column, None, None] / 16
    torch.testing.assert_close(found[f"{layer}local_attention.map"][0], expected[:, :20, :25])
    row = whole[:, :, place[0] // 6, place[1] // 6].unflatten(1, (4, 5))
    for down, across in ((0, 0), (1, 2), (3, 4)):
        cell = found[f"{layer}global_attention.map"][0, :, 6 * down : 6 * down + 6, 6 * across : 6 * across + 6]
        torch.testing.assert_close(cell, row[:, down, across, None, None].expand_as(cell) / 36)


def test_positions_of_mat_read_their_window_and_then_all_windows():
    model = awake(small("mat_1", 1, window=3)).eval()
    images, layer = torch.randn(1, 3, 96, 64), "stages.2.blocks.0.attention."  # 6 x 4 positions, 2 x 2 windows
    with torch.no_grad(), record(model, f"{layer}*") as seen:
        model(images)
    found = read_from(model, images, (0.99, 0.2))  # row 1, column 3: alone in its row of the second window
    weights = seen[f"{layer}window_attn"][0, :, 1:, 1, 3].unflatten(1, (3, 3))
    expected = torch.zeros(weights.shape[0], 6, 4)
    expected[:, :3, 3] = weights[:, :, 0]
    assert not weights[:, :, 1:].any()  # beyond the map
    torch.testing.assert_close(found[f"{layer}window_attn"][0], expected)
    windows = seen[f"{layer}fusion_attn"][0, :, :, 1, 3].unflatten(1, (2, 2))
    read = found[f"{layer}fusion_attn"][0]
    for rows, columns, window in ((slice(3), slice(3), (0, 0)), (slice(3, 6), slice(3, 4), (1, 1))):
        part = read[:, rows, columns]
        torch.testing.assert_close(part, windows[:, *window, None, None].expand_as(part) / 9)


@pytest.mark.parametrize("single_query", [True, False])
def test_places_of_partialformer_read_by_the_set_that_they_are_in(single_query):
    model = awake(small("partialformer_b0", 1, single_query=single_query)).eval()
    images, layer = IMAGES[:1], "stages.2.blocks.0.attention."  # 4 x 4 positions, 2 of them foreground
    with torch.no_grad(), record(model, f"{layer}*") as seen:
        model(images)
    positions = seen[f"{layer}positions"][0].tolist()
    for number in range(16):
        read = read_from(model, images, (number % 4 / 4, number // 4 / 4))[f"{layer}mixed"][0].flatten(1)
        if number in positions:
            expected = torch.zeros_like(read)
            expected[:, positions] = seen[f"{layer}mixed"][0, :, 1 + positions.index(number), 1:]
        else:
            expected = seen[f"{layer}background"][0].flatten(1) if single_query else torch.zeros_like(read)
        torch.testing.assert_close(read, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clusters", [3, 16])
def test_every_block_reads_the_clusters_that_it_uses(clusters):
    """Also where blocks make their own, and where there happen to be as many clusters as positions."""
    model = awake(small("paca_b0", 2, clusters=(clusters,) * 4)).eval()
    with torch.no_grad(), record(model, "stages.2.*") as seen:
        model(IMAGES)
    found = read_from(model, IMAGES, (0.6, 0.3))
    for block in (0, 1):
        weights = seen[f"stages.2.blocks.{block}.attention.map"][..., 1, 2]
        expected = torch.einsum("bhk,bkyx->bhyx", weights, seen[f"stages.2.clusters.{block}"])
        torch.testing.assert_close(found[f"stages.2.blocks.{block}.attention.map"], expected)


def test_the_class_token_of_a_foreign_transformer_is_a_layer_of_its_own():
    model = timm.create_model("test_vit", num_classes=3, img_size=64).eval()
    assert layers_read(model)["blocks.0.attn.class_token"] is False
    assert list(layers_read(model))[:2] == ["blocks.0.attn.class_token", "blocks.0.attn"]
    found = read_from(model, IMAGES[:1], (0.3, 0.9))
    with torch.no_grad(), record_attention(model) as seen:
        model(IMAGES[:1])
    weights = seen["blocks.0.attn"][0]
    torch.testing.assert_close(found["blocks.0.attn.class_token"][0].flatten(1), weights[:, 0, 1:])
    torch.testing.assert_close(found["blocks.0.attn"][0].flatten(1), weights[:, 1 + 3 * 4 + 1, 1:])


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
