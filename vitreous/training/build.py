"""From settings to a model that can be trained."""

from typing import Any

from timm import get_pretrained_cfg
from torch import nn

from vitreous.data.loader import seed_everything
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.registry import create_model, stored_arguments
from vitreous.training.model_folder import RESERVED
from vitreous.training.settings import TrainSettings

INITIAL_WEIGHTS = 0  # first number of the key, as in train.py


def model_arguments(settings: TrainSettings) -> dict[str, Any]:
    """What is stored with the model, and above it what the user asked for: all that it takes to build it again.

    Models of timm that are built for one image size are told which.
    """
    architecture, stored = stored_arguments(settings.model)
    arguments = {name: value for name, value in stored.items() if name not in RESERVED}
    config = get_pretrained_cfg(architecture)
    if config is not None and config.fixed_input_size:
        arguments["img_size"] = settings.size
    return arguments | settings.model_arguments()


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
