"""The model that answers where none is named: one that knows photographs, from its authors' release."""

import logging
from pathlib import Path
from typing import Any

from vitreous.data.image import SUFFIXES
from vitreous.data.image_set import holds_pictures
from vitreous.errors import InputError
from vitreous.runs.model_config import CONFIG
from vitreous.runs.model_folder import PREFERRED, is_weights_file

DEFAULT_MODEL = "paca_tiny.ivmcl_in1k"  # 12 million weights, 80.9 % top-1 on ImageNet, MIT licence
_MODEL_MARKS = (CONFIG, "run.json", *PREFERRED)  # in a folder that is a model or a run, whatever pictures are in it too

_logger = logging.getLogger(__name__)


def model_and_pictures(model: Any, images: tuple[Any, ...], verb: str) -> tuple[Any, tuple[Any, ...]]:
    """What a verb was given, which may begin with its pictures: these then go to the default model."""
    if isinstance(model, str) and names_pictures(model):
        announce_default(f"vitreous {verb} MODEL IMAGES")
        return DEFAULT_MODEL, (model, *images)
    if not images:
        shown = model if isinstance(model, str) else "MODEL"
        raise InputError(
            f"no images given; as in: vitreous {verb} photo.jpg, or with a model: {verb} {shown} photo.jpg"
        )
    if model == DEFAULT_MODEL:
        announce_default(f"vitreous {verb} MODEL IMAGES")
    return model, images


def announce_default(other: str) -> None:
    """Say which model answers, and how another is named."""
    _logger.info("model: %s, which knows ImageNet's 1,000 classes; another: %s", DEFAULT_MODEL, other)


def names_pictures(word: str) -> bool:
    """Whether the first word of a command is about pictures: what is no model, run or file of weights by its look."""
    path = Path(word).expanduser()
    if word == "shapes" or word.startswith("shapes:"):
        return True
    if path.is_dir():
        return not any((path / mark).exists() for mark in _MODEL_MARKS) and holds_pictures(path)
    return not is_weights_file(word) and (
        path.suffix.lower() in SUFFIXES or path.is_file() or any(sign in word for sign in "*?[")
    )
