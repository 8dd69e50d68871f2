"""The map of an explainer that was taught for a model's very weights; found where one is.

A model carries its explainer, or the folder of one that nobody has asked for yet, beside its own modules: it is no part
of the model's weights, and a copy of the model has it too. So the control with shuffled weights shows what the map
owes to the explainer alone.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.attribution.controls import RandomWeights
from vitreous.attribution.explainer import LearnedExplainer
from vitreous.attribution.explainer_folder import read_explainer
from vitreous.attribution.method import Method, Needs
from vitreous.attribution.target import ClassTarget, Target
from vitreous.errors import InputError

ATTRIBUTE = "learned_explainer"


def carry_explainer(model: nn.Module, explainer: LearnedExplainer | Path) -> None:
    """Let a model carry its explainer; of a folder, it is read and checked when somebody asks for it."""
    object.__setattr__(model, ATTRIBUTE, explainer)  # torch would make it a part of the model


def explainer_of(model: nn.Module) -> LearnedExplainer | None:
    """The explainer that a model carries. One that is damaged, or of other weights, is an InputError."""
    carried = vars(model).get(ATTRIBUTE)
    if isinstance(carried, Path):
        found = read_explainer(carried, model)
        if found is None:
            return None
        carried = found
        carry_explainer(model, found)
    return carried


def explains_itself(model: nn.Module) -> bool:
    """Whether it is an exported model whose graph holds the explainer."""
    return bool(getattr(model, "explains", False))


def exported_heat(model: Any, images: Tensor, labels: Tensor) -> Tensor:
    """The map that comes with the answer: of the likeliest class, and of no other."""
    heat, likeliest = model.explanation(images)
    if not torch.equal(likeliest.cpu(), labels.cpu()):
        raise InputError(
            "the explainer of an exported model knows the likeliest class only, and another one is to be explained; "
            "take another method, or the run that it was exported from"
        )
    return heat


@dataclass(frozen=True)
class Learned(Method):
    """What `explanations.learning` has taught. Of classes; other targets are refused."""

    order = 15
    name = "learned"
    summary = "What a small network has learned to point at: shown alone it keeps the answer, hidden it takes it away."
    needs = Needs(passes=1)

    def missing(self, model: nn.Module) -> str | None:
        if explains_itself(model) or explainer_of(model) is not None:
            return None
        return "no explainer was learned for these weights; vitreous score RUN DATA --learn does that"

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        labels = class_labels(target, images)
        if explains_itself(model):
            return exported_heat(model, images, labels)
        explainer = explainer_of(model)
        assert explainer is not None
        return explainer.to(images.device).explain(model, images, labels)


def class_labels(target: Target, images: Tensor) -> Tensor:
    """What an explainer is told, on the device of the images."""
    if not isinstance(target, ClassTarget):
        raise InputError(f"learned explains classes, and no {type(target).__name__}; take another method")
    return target.labels.to(images.device)


METHODS = (Learned(),)
CONTROLS = (RandomWeights(Learned()),)
