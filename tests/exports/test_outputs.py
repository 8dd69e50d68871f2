"""What goes into a graph is what the model, its taps and its explainer give."""

import pytest
import timm
import torch

from tests.support.tiny_model import MODEL_ARGS
from vitreous.attribution.explainer import new_explainer
from vitreous.errors import InputError
from vitreous.exports.outputs import GraphModel, graph_kind, shown_taps
from vitreous.layers.tap import record


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model("paca_tiny", num_classes=5, **MODEL_ARGS).eval()


def test_an_explainer_shows_the_likeliest_class(model) -> None:
    images = torch.randn(2, 3, 64, 64)
    explainer = new_explainer(model, images)
    torch.nn.init.normal_(explainer.last.weight)
    with torch.no_grad():
        found = GraphModel(model, "classify", explainer=explainer).named(images)
        logits = model(images)
        torch.testing.assert_close(found["logits"], logits)
        torch.testing.assert_close(found["explanation"], explainer.explain(model, images, logits.argmax(1)))


def test_maps_are_those_of_the_taps(model) -> None:
    images, names = torch.randn(1, 3, 64, 64), shown_taps(model)
    assert "stages.2.clusters" in names
    assert not any(name.endswith("output") for name in names)
    with torch.no_grad(), record(model, *names) as wanted:
        model(images)
    with torch.no_grad():
        found = GraphModel(model, "classify", names).named(images)
    assert list(found) == ["logits", *names]
    for name in names:
        torch.testing.assert_close(found[name], wanted[name])


def test_features_come_with_what_the_classifier_reads(model) -> None:
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        found, wanted = GraphModel(model, "features").named(images), model.features(images)
    torch.testing.assert_close(found.pop("pooled"), wanted.pooled)
    assert [tuple(one.shape) for one in found.values()] == [tuple(one.shape) for one in wanted.maps]


def test_tasks_without_a_graph_are_refused(model) -> None:
    with pytest.raises(InputError, match="'count' cannot be exported"):
        graph_kind(model, "count", features=False)
