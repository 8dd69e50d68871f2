"""The arguments that `vitreous info NAME` shows are those the model was built with, and all there are."""

import inspect
from dataclasses import fields

import pytest
import torch

import vitreous
from vitreous.figures.display import arguments_of
from vitreous.models.arguments import BackboneOptions
from vitreous.registry import ENTRIES

CASES = [
    ("paca_tiny_teacher", {}),
    ("paca_b0_cifar", {}),
    ("paca_b0", dict(cluster_position=True, stem_stride=2, in_chans=1)),
    ("xcit_nano_12_p8", dict(patch=4, num_classes=7)),
    ("emsnet_xxtiny", dict(kernel_size=5)),
    ("mat_1", dict(embed="conv")),
    ("partialformer_b0", dict(mlp_dw=False)),
]


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_shown_values_build_the_same_model(name: str, changes: dict) -> None:
    with torch.device("meta"):
        model = vitreous.create_model(name, **changes)
        shown = arguments_of(model, {**ENTRIES[name].arguments, **changes})
        again = type(model)(**{argument: value for argument, (value, _) in shown.items()})
    shapes = [{key: tensor.shape for key, tensor in built.state_dict().items()} for built in (model, again)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_every_argument_is_documented(name: str, changes: dict) -> None:
    with torch.device("meta"):
        model = vitreous.create_model(name, **changes)
    shown = arguments_of(model, {**ENTRIES[name].arguments, **changes})
    open_ended = {"options", "common"}
    assert shown.keys() >= inspect.signature(type(model)).parameters.keys() - open_ended
    assert shown.keys() >= BackboneOptions.__annotations__.keys()
    if model.settings is not None:
        assert shown.keys() >= {field.name for field in fields(model.settings)}
    assert all(meaning.endswith(".") for _, meaning in shown.values())


def test_texts_are_those_of_the_family() -> None:
    with torch.device("meta"):
        model = vitreous.create_model("paca_b0")
    shown = arguments_of(model, ENTRIES["paca_b0"].arguments)
    assert shown["stem_stride"] == (4, "Stride of the stem: 4, or 2 or 1 for small images.")
    assert shown["clustering"].value == "bottleneck"
    assert shown["recluster"].meaning.endswith("the other blocks reuse the latest one.")  # from its second line
