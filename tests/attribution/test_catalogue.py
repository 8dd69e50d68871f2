"""A method is found by being there; CONTRIBUTING shows one that is."""

import sys

import pytest
import torch

import vitreous.attribution
from tests.support.explained_models import family, pictures
from tests.support.pages import blocks
from vitreous.attribution.catalogue import all_controls, all_methods, find_method, methods_for


@pytest.fixture
def brightness(tmp_path, monkeypatch):
    """The example of CONTRIBUTING in a folder of somebody else's."""
    (code,) = [block for block in blocks("CONTRIBUTING.md", "python") if "METHODS" in block]
    (tmp_path / "brightness.py").write_text(code)
    monkeypatch.setattr(vitreous.attribution, "__path__", [*vitreous.attribution.__path__, str(tmp_path)])
    yield
    sys.modules.pop("vitreous.attribution.brightness", None)


def test_a_new_method_is_one_file(brightness):
    model, images = family(), pictures(2)
    assert [method.name for method in all_methods()][-1] == "brightness"
    assert "brightness" in [method.name for method in methods_for(model)]
    torch.testing.assert_close(find_method("brightness", model)(model, images), images.mean(1))


def test_without_its_file_it_is_gone():
    assert "brightness" not in [method.name for method in all_methods()]


def test_the_order_of_lists():
    """By `order`, then by room and file; reports and tables rely on it."""
    assert [method.name for method in all_methods()][:25] == [
        "contributions",
        "grad_cam",
        "layer_cam",
        "input_gradient",
        "integrated_gradients",
        "gradient_contrast",
        "gradient_contrast_2",
        "gradient_contrast_3",
        "learned",
        "learned_contrast",
        "occlusion",
        "rise",
        "refined_mask",
        "refined_mask_34",
        "refined_mask_100",
        "refined_learned_7",
        "refined_learned",
        "lrp",
        "attn_lrp",
        "score_cam",
        "segment_shapley",
        "segment_shapley_49",
        "rollout",
        "token_gradient",
        "clusters attention_mass",
    ]
    assert [method.name for method in all_controls()] == [
        "random_map",
        "centre_blob",
        "clusters random top 1",
        "random_weights grad_cam",
        "random_weights learned",
        "random_weights clusters attention_mass",
    ]
