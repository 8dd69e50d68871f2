"""From settings to a model that can be trained, and to the teacher it may learn from."""

from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from timm import get_pretrained_cfg
from torch import nn

from vitreous.data.loader import seed_everything
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.manifest import sha256
from vitreous.models.weights import read_state
from vitreous.registry import create_model, resolve_name, stored_arguments
from vitreous.tasks.distill import Distillation, Teacher
from vitreous.training.model_folder import (
    RESERVED,
    WEIGHTS,
    class_columns,
    find_model_folder,
    load_classifier,
    read_config,
    refusal_of_size,
)
from vitreous.training.settings import TrainSettings

INITIAL_WEIGHTS = 0  # first number of the key, as in train.py


class Built(NamedTuple):
    model: nn.Module
    notes: tuple[str, ...]  # what the user should know about where it starts from


def model_arguments(settings: TrainSettings) -> dict[str, Any]:
    """What is stored with the model or its weights, and above it what the user asked for: all it takes to build it.

    Models of timm that are built for one image size are told which.
    """
    architecture, stored = stored_arguments(settings.model)
    if settings.weights is not None and (folder := _folder(settings.weights)) is not None:
        there = read_config(folder)
        stored |= there.model_args if there.architecture == architecture.partition(".")[0] else {}
    arguments = {name: value for name, value in stored.items() if name not in RESERVED}
    config = get_pretrained_cfg(architecture)
    if config is not None and config.fixed_input_size:
        arguments["img_size"] = settings.size
    return arguments | settings.model_arguments()


def build_model(settings: TrainSettings, arguments: dict[str, Any], classes: int) -> Built:
    seed_everything(settings.seed, INITIAL_WEIGHTS)
    try:
        model, notes = _initial_model(settings, arguments, classes)
    except TypeError as reason:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        raise InputError(f"model '{settings.model}' does not accept {given} ({reason})") from reason
    refusal = refusal_of_size(model, settings.size)
    if refusal is not None:
        raise InputError(
            f"model '{settings.model}' cannot take images of {settings.size}x{settings.size} pixels ({refusal}); "
            f"give it --size {model.pretrained_cfg['input_size'][-1]}, for which it was made, or what it needs for "
            "another size as --model-args"
        )
    if settings.grad_checkpointing:
        try:
            model.set_grad_checkpointing(True)
        except (AssertionError, AttributeError) as reason:
            raise InputError(
                f"model '{settings.model}' cannot save memory this way; leave out --grad-checkpointing, "
                "or cut the batches into pieces with --accumulate"
            ) from reason
    return Built(model, notes)


def _initial_model(settings: TrainSettings, arguments: dict[str, Any], classes: int) -> tuple[Any, tuple[str, ...]]:
    if settings.weights is not None:
        model, origin = _from_weights(settings, settings.weights, arguments), settings.weights
    elif settings.pretrained:
        model, origin = create_model(settings.model, pretrained=True, **arguments), f"those of {settings.model}"
    else:
        return create_model(settings.model, num_classes=classes, **arguments), ()
    before = model.num_classes
    if before == classes:
        return model, (f"weights: {origin}",)
    model.reset_classifier(classes)
    return model, (f"weights: {origin}; the classifier is new, for {classes} classes instead of {before}",)


def _from_weights(settings: TrainSettings, source: str, arguments: dict[str, Any]) -> Any:
    """The model as its weights were made, with as many classes."""
    state = read_state(_folder(source) or Path(source).expanduser())
    architecture = stored_arguments(settings.model)[0]
    config = get_pretrained_cfg(architecture)
    classifier = None if config is None else config.classifier
    names = [classifier] if isinstance(classifier, str) else list(classifier or ())
    heads = [state[f"{name}.weight"] for name in names if f"{name}.weight" in state]
    classes = len(heads[0]) if heads else 0
    overlay = {"state_dict": state, "num_classes": classes}
    try:
        model: Any = timm.create_model(
            resolve_name(architecture),
            pretrained=True,
            num_classes=classes,
            pretrained_cfg_overlay=overlay,
            **arguments,
        )
    except (RuntimeError, InputError) as reason:
        lines = "\n".join(str(reason).splitlines()[:6])
        raise InputError(f"the weights {source} do not fit {settings.model}: {lines}") from reason
    for config in (model.pretrained_cfg, model.default_cfg):
        config.pop("state_dict", None)  # or every copy of the model would carry a copy of them
    return model


def _folder(weights: str) -> Path | None:
    """The model folder that weights are in; None if they are a file."""
    return find_model_folder(weights) if Path(weights).expanduser().is_dir() else None


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


def teacher_fingerprint(teacher: str) -> str:
    """Tells whether a run goes on with the teacher it began with."""
    folder = find_model_folder(teacher)
    return teacher if folder is None else f"{teacher} {sha256(folder / WEIGHTS)[:16]}"


def build_distillation(
    settings: TrainSettings, classes: tuple[str, ...], shown: Preprocess, device: torch.device
) -> Distillation | None:
    """The teacher, ready on its device, that the settings ask for."""
    if settings.teacher is None:
        return None
    trained = load_classifier(settings.teacher, size=None, device=str(device))
    if len(trained.classes) != len(classes):
        raise InputError(
            f"teacher '{settings.teacher}' tells {len(trained.classes)} classes apart and the data has {len(classes)}; "
            "a teacher must know exactly the classes of the data: fine-tune one on them first"
        )
    teacher = Teacher(
        trained.model,
        trained.preprocess,
        shown,
        columns=class_columns(trained, classes),
        resized=refusal_of_size(trained.model, settings.size) is not None,
    )
    return Distillation(teacher, settings.distill, settings.distill_weight, settings.distill_temperature)
