"""One small model of every family, for tests that go over all of them."""

from pathlib import Path

import timm
import torch
from torch import nn

import vitreous  # noqa: F401  (registers the models)
from vitreous.data.transforms import Preprocess
from vitreous.training.model_folder import save_model

SHORT: dict[str, dict] = {
    "paca_tiny": dict(depths=(1, 1, 1, 1)),
    "paca_b0": dict(depths=(1, 1, 1, 1)),
    "xcit_nano_12_p16": dict(depth=4),
    "emsnet_xxtiny": dict(depths=(1, 1, 1, 1)),
    "mat_1": dict(depths=(1, 1, 1, 1)),
    "partialformer_b0": dict(depths=(1, 1, 1, 1)),
}
FAMILIES = list(SHORT)


def small(name: str, **arguments) -> nn.Module:
    return timm.create_model(name, **{"num_classes": 3, **SHORT[name], **arguments})


def save_small(folder: Path, name: str, **arguments) -> nn.Module:
    """A model folder as `vitreous train` leaves it; returns the model that is in it."""
    model = small(name, **arguments).eval()
    save_model(
        folder,
        model,
        name=name,
        model_args={**SHORT[name], **arguments},
        task="classify",
        classes=("ant", "bee", "cat"),
        preprocess=Preprocess((64, 64)),
    )
    return model


def assert_every_parameter_has_a_gradient(model: nn.Module) -> None:
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    without = [name for name, gradient in gradients.items() if gradient is None]
    assert not without, f"no gradient: {without}"
    broken = [name for name, gradient in gradients.items() if not torch.isfinite(gradient).all()]
    assert not broken, f"gradient not finite: {broken}"
