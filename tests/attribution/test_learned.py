"""The learned explainer: one pass, for all families, only for the weights it was taught for, complete or absent."""

import copy
import json
import shutil

import pytest
import timm
import torch
from torch import nn

from tests.support.explained_models import FAMILIES, counting, family, pictures
from vitreous.attribution import explainer_folder
from vitreous.attribution.catalogue import controls_for, find_method, methods_for
from vitreous.attribution.controls import shuffled
from vitreous.attribution.explainer import (
    class_activation,
    classifier_rows,
    explained_stages,
    look_inside,
    new_explainer,
)
from vitreous.attribution.explainer_folder import read_explainer, save_explainer
from vitreous.attribution.fill import baseline, standardised
from vitreous.attribution.gradient import pixel_gradient
from vitreous.attribution.gradient_contrast import blurred_contrast, what_speaks_for_it
from vitreous.attribution.learned import Learned, carry_explainer, explainer_of
from vitreous.attribution.learned_contrast import LearnedContrast
from vitreous.attribution.method import to_image
from vitreous.attribution.target import ClassTarget, RegionTarget
from vitreous.clusters.contributions import contributions
from vitreous.errors import InputError

FOREIGN = ("test_efficientnet", "test_vit", "test_convnext")


def model_of(name: str) -> nn.Module:
    if name in FAMILIES:
        return family(name)
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=5, **({"img_size": 64} if "vit" in name else {})).eval()


def awake(explainer):
    """With a last layer that is not zero, as after teaching."""
    with torch.no_grad():
        explainer.last.weight.normal_(generator=torch.Generator().manual_seed(0))
    return explainer


@pytest.fixture
def explained():
    model = family()
    carry_explainer(model, awake(new_explainer(model, pictures(4))))
    return model


@pytest.mark.parametrize("name", [*FAMILIES, *FOREIGN])
def test_every_model_gets_maps_from_one_pass(name):
    model, images = model_of(name), pictures(3)
    carry_explainer(model, awake(new_explainer(model, pictures(4))))
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    calls, end = counting(first)
    heat = Learned()(model, images, ClassTarget(labels=torch.tensor([0, 1, 2])))
    end()
    assert calls == [3]
    assert heat.shape[0] == 3
    assert min(heat.shape[1:]) >= 4
    other = Learned()(model, images, ClassTarget(labels=torch.tensor([3, 3, 3])))
    assert not torch.allclose(heat, other)
    single = Learned()(model, images[:1], ClassTarget(labels=torch.tensor([0])))
    torch.testing.assert_close(single, heat[:1], atol=1e-4, rtol=1e-4)  # sums of a batch come in another order


@pytest.mark.parametrize("name", [*FAMILIES, *FOREIGN])
def test_sharpened_by_contrast_it_is_the_sum_of_both_from_one_pass(name):
    model, images = model_of(name), pictures(2)
    carry_explainer(model, awake(new_explainer(model, pictures(4))))
    target = ClassTarget(labels=torch.tensor([0, 1]))
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    calls, end = counting(first)
    heat = LearnedContrast()(model, images, target)
    end()
    assert calls == [2]
    slope = pixel_gradient(model, images, target)
    added = blurred_contrast(what_speaks_for_it(slope, images - baseline(images, "blur")))
    pointed = to_image(Learned()(model, images, target), images.shape[2:])
    expected = standardised(pointed) + standardised(added)
    torch.testing.assert_close(heat, expected, atol=1e-3, rtol=1e-3)  # in other orders, and divided by small spreads


def test_it_starts_as_the_class_activation_map():
    model, images = family("emsnet_xxtiny"), pictures(2)
    labels = torch.tensor([1, 4])
    heat = new_explainer(model, pictures(4)).explain(model, images, labels)
    cam = torch.einsum("bchw,bc->bhw", model.forward_features(images), classifier_rows(model)[labels])
    cam = nn.functional.interpolate(cam[:, None], heat.shape[1:], mode="bilinear")[:, 0]
    cam = (cam - cam.mean((1, 2), keepdim=True)) / cam.flatten(1).std(1)[:, None, None]
    torch.testing.assert_close(heat, cam, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [*FAMILIES, *FOREIGN])
def test_a_fresh_one_has_a_map_to_learn_from(name):
    model = model_of(name)
    heat = new_explainer(model, pictures(4)).explain(model, pictures(2), torch.tensor([1, 4]))
    assert heat.flatten(1).std(1).min() > 1e-3  # a constant map has no slope, and nothing would ever be learned


def test_where_clusters_are_read_it_starts_from_what_the_classifier_says_about_each_place():
    model, images, labels = family(readout="clusters"), pictures(2), torch.tensor([1, 4])
    prior = class_activation(look_inside(model, images), classifier_rows(model)[labels])
    evidence = contributions(model, images).evidence[torch.arange(2), labels]
    torch.testing.assert_close(prior, evidence, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [*FAMILIES, *FOREIGN])
def test_a_look_inside_is_what_the_model_computes(name):
    model, images = model_of(name), pictures(2)
    with torch.no_grad():
        torch.testing.assert_close(model.forward_head(look_inside(model, images).final), model(images))


def test_the_stages_that_are_read():
    def grids(*sides):
        return [torch.zeros(1, 1, side, side) for side in sides]

    assert explained_stages(grids(56, 28, 14, 7)) == (2, 3)
    assert explained_stages(grids(16, 8, 4, 2)) == (1, 3)
    assert explained_stages(grids(4, 2)) == (0, 1)
    assert explained_stages(grids(14, 14, 14)) == (2,)


def test_it_is_offered_only_where_one_was_learned(explained):
    assert "learned" in [method.name for method in methods_for(explained)]
    assert "random_weights learned" in [method.name for method in controls_for(explained)]
    plain = family()
    assert "learned" not in [method.name for method in (*methods_for(plain), *controls_for(plain))]
    with pytest.raises(InputError, match=r"no explainer was learned.*--learn"):
        find_method("learned", plain)


def test_it_is_no_part_of_the_model_but_copies_have_it(explained):
    assert explained.state_dict().keys() == family().state_dict().keys()
    assert len(list(explained.modules())) == len(list(family().modules()))
    assert explainer_of(copy.deepcopy(explained)) is not None
    images, target = pictures(2), ClassTarget(labels=torch.tensor([0, 1]))
    likeness = Learned()(shuffled(explained), images, target) - Learned()(explained, images, target)
    assert likeness.abs().max() > 0.01


def test_targets_that_are_no_classes_are_refused(explained):
    target = RegionTarget(labels=torch.tensor([0]), region=torch.ones(1, 64, 64))
    with pytest.raises(InputError, match="learned explains classes"):
        Learned()(explained, pictures(1), target)


def test_a_model_without_a_map_is_refused():
    with pytest.raises(InputError, match="Sequential has no map of places"):
        new_explainer(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), torch.zeros(1, 3, 2, 2))


# ---- on disk -----------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(explained, tmp_path):
    save_explainer(tmp_path / "explainer", explainer_of(explained), explained, {"data": "shapes", "pictures": 64})
    return tmp_path / "explainer"


def test_a_stored_one_gives_the_same_maps(explained, stored):
    model = family()
    carry_explainer(model, stored)
    images, target = pictures(2), ClassTarget(labels=torch.tensor([0, 1]))
    assert torch.equal(Learned()(model, images, target), Learned()(explained, images, target))
    content = json.loads((stored / "explainer.json").read_text())
    assert content["learned"] == {"data": "shapes", "pictures": 64}
    assert len(content["fingerprint"]) == 64


def test_a_folder_without_one_offers_nothing(tmp_path):
    model = family()
    carry_explainer(model, tmp_path / "explainer")
    assert explainer_of(model) is None


def test_one_of_other_weights_is_refused(stored):
    model = family()
    with torch.no_grad():
        next(model.parameters()).add_(1e-3)
    carry_explainer(model, stored)
    with pytest.raises(InputError, match=r"learned for other weights than these; learn again .*--learn"):
        methods_for(model)


@pytest.mark.parametrize("file", ["explainer.safetensors", "explainer.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["removed", "cut", "changed"])
def test_a_damaged_one_is_one_line_that_says_what_to_do(explained, stored, file, damage):
    path = stored / file
    content = path.read_bytes()
    changed = {"cut": content[:-9], "changed": b"x" + content[1:]}
    path.unlink()
    if damage != "removed":
        path.write_bytes(changed[damage])
    with pytest.raises(InputError, match="learn again") as refused:
        read_explainer(stored, explained)
    assert "\n" not in str(refused.value)


def test_sizes_from_a_file_take_no_memory(explained, stored, monkeypatch):
    """A file that asks for more than its weights is refused before anything of that size is made."""
    monkeypatch.setattr(explainer_folder, "verify_folder", lambda *_: None)
    content = json.loads((stored / "explainer.json").read_text())
    content["explainer"]["classes"] = content["explainer"]["channels"] = 10**9
    (stored / "explainer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="learn again"):
        read_explainer(stored, explained)


@pytest.mark.parametrize("stages", ["abc", [-1], [0.5], 3, None])
def test_stages_that_are_no_numbers_of_maps_are_refused(explained, stored, monkeypatch, stages):
    monkeypatch.setattr(explainer_folder, "verify_folder", lambda *_: None)
    content = json.loads((stored / "explainer.json").read_text())
    content["explainer"]["stages"] = stages
    (stored / "explainer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="learn again"):
        read_explainer(stored, explained)


def test_an_old_one_stays_until_the_new_one_is_whole(explained, stored, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    before = {path.name: path.read_bytes() for path in stored.iterdir()}
    monkeypatch.setattr(explainer_folder, "write_json", fail)
    with pytest.raises(InputError, match="what was there before is intact"):
        save_explainer(stored, awake(new_explainer(explained, pictures(6))), explained, {})
    assert {path.name: path.read_bytes() for path in stored.iterdir()} == before
    assert [path.name for path in stored.parent.iterdir()] == ["explainer"]
    shutil.rmtree(stored)
    with pytest.raises(InputError, match="No space left"):
        save_explainer(stored, explainer_of(explained), explained, {})
    assert list(stored.parent.iterdir()) == []
