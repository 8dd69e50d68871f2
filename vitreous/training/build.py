"""From settings to a model that can be trained."""

from typing import Any

from timm import get_pretrained_cfg
from torch import nn

from vitreous.data.loader import seed_everything
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.registry import create_model, resolve_name
from vitreous.training.settings import TrainSettings

INITIAL_WEIGHTS = 0  # first number of the key, as in train.py


def model_arguments(settings: TrainSettings) -> dict[str, Any]:
    """What the user asked for; models of timm that are built for one image size are told which."""
    given = settings.model_arguments()
    config = get_pretrained_cfg(resolve_name(settings.model))
    return {"img_size": settings.size} | given if config is not None and config.fixed_input_size else given


def build_model(settings: TrainSettings, arguments: dict[str, Any], classes: int) -> nn.Module:
    seed_everything(settings.seed, INITIAL_WEIGHTS)
    try:
        return create_model(settings.model, pretrained=settings.pretrained, num_classes=classes, **arguments)
    except TypeError as reason:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        raise InputError(f"model '{settings.model}' does not accept {given} ({reason})") from reason


def preprocess_for(model: Any, settings: TrainSettings) -> Preprocess:
    """The colour statistics the model was made for, at the size asked for."""
    config = model.pretrained_cfg
    return Preprocess(
        size=(settings.size, settings.size),
        crop_ratio=settings.crop_ratio,
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )
