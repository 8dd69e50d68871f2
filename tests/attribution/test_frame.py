"""What fills a picture up is no part of it: maps are cut, and nothing else ever sees it."""

import pytest
import torch

from tests.support.explained_models import QUICK_METHODS, family, pictures
from vitreous.attribution.catalogue import controls_for, methods_for
from vitreous.attribution.frame import Framed, cell_shares, framed, of_picture
from vitreous.attribution.target import ClassTarget
from vitreous.clusters.gates import cluster_layer
from vitreous.clusters.importance import RANKINGS, patch_attention
from vitreous.clusters.layer import layer_maps
from vitreous.faithfulness.curves import curves

SIZE, FILLED = (64, 96), (64, 128)
FILLING = torch.tensor([-2.0, 0.5, 3.0])
TARGET = ClassTarget(labels=torch.tensor([1]))


def filled_up(images: torch.Tensor) -> torch.Tensor:
    whole = FILLING.view(1, 3, 1, 1).expand(len(images), 3, *FILLED).clone()
    whole[..., : SIZE[0], : SIZE[1]] = images
    return whole


def test_a_framed_model_sees_what_it_was_trained_with():
    model, images = family(), pictures(2, *SIZE)
    with torch.no_grad():
        assert torch.equal(Framed(model, SIZE, FILLED, FILLING)(images), model(filled_up(images)))
    assert framed(model, SIZE, SIZE, FILLING) is model


def test_cells_that_end_where_the_picture_ends_stay_as_they_are():
    maps = torch.rand(2, 3, 4, 8)
    model = Framed(torch.nn.Identity(), SIZE, FILLED, FILLING)
    assert torch.equal(of_picture(maps, model), maps[..., :6])
    assert of_picture(maps, torch.nn.Identity()) is maps


@pytest.mark.parametrize(("cells", "kept"), [(8, 7.25), (8, 6.5), (4, 0.3), (5, 5.0), (7, 0.999)])
def test_no_cell_takes_anything_from_beyond_the_picture(cells, kept):
    part = cell_shares(cells, kept)
    assert part.shape == (max(1, round(kept)), cells)
    assert part.sum(1).tolist() == pytest.approx([1.0] * len(part))
    assert (part[:, torch.arange(cells) >= kept] == 0).all()
    # Every new cell covers as much of the old ones as any other, and together they cover all that is kept.
    area = part.sum(0) * kept / len(part)
    assert area.tolist() == pytest.approx([min(1.0, max(0.0, kept - cell)) for cell in range(cells)], abs=1e-5)


def test_every_method_gives_the_map_of_the_picture_alone():
    """From inside the network: that of the filled-up picture without its last columns.

    Other than those that hide parts of the picture, are random, or count who looks at a cluster, by nature.
    """
    model, images = family(scale=2), pictures(1, *SIZE)
    outer = Framed(model, SIZE, FILLED, FILLING)
    inside = 0
    for method in (*methods_for(outer), *controls_for(outer)):
        method = QUICK_METHODS.get(method.name, method)
        heat = method(outer, images, TARGET)
        assert heat.isfinite().all()
        other = any(word in method.name for word in ("masking", "random", "attention_mass", "score_cam"))
        if method.needs.inside and not other:
            whole = method(model, filled_up(images), TARGET)
            columns = whole.shape[2] * SIZE[1] // FILLED[1]
            if whole.shape[2] % 4 == 0:
                torch.testing.assert_close(heat, whole[..., :columns], msg=method.name)
                inside += 1
    assert inside > 5


def test_clusters_and_their_attention_are_cut():
    model, images = family(), pictures(1, *SIZE)
    outer, layer = Framed(model, SIZE, FILLED, FILLING), cluster_layer(model)
    torch.testing.assert_close(layer_maps(outer, images, layer), layer_maps(model, filled_up(images), layer)[..., :6])
    whole = patch_attention(model, filled_up(images), layer)
    torch.testing.assert_close(patch_attention(outer, images, layer), whole[..., :6])
    assert RANKINGS["masking"](outer, images, TARGET, layer).shape == (1, 6)


def test_insertion_and_deletion_leave_the_filling_alone():
    model, images, seen = family(), pictures(1, *SIZE), []
    outer = Framed(model, SIZE, FILLED, FILLING)
    model.register_forward_pre_hook(lambda _model, inputs: seen.append(inputs[0]))
    curves(outer, images, torch.rand(1, 4, 6), TARGET, portions=4)
    assert sum(map(len, seen)) == 2 * 3 + 2
    for batch in seen:
        assert torch.equal(batch[..., SIZE[1] :], filled_up(images)[..., SIZE[1] :].expand(len(batch), -1, -1, -1))
