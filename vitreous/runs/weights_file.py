"""From a file of weights to a model: which model it belongs to, how many classes it has, and whether it fits."""

import argparse
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from safetensors import safe_open
from timm import get_pretrained_cfg, is_model
from torch import Tensor

from vitreous.errors import InputError
from vitreous.files.reading import excerpt, reason_of
from vitreous.files.storage import read_stored_json
from vitreous.models.base import Backbone
from vitreous.models.weights import (
    REBUILT_KEYS,
    WEIGHTS_FILES,
    MisfitError,
    check_finite,
    describe_layout,
    describe_misfit,
    local_file,
    open_checkpoint,
    read_state,
    read_tensors,
)
from vitreous.registry import ALIASES, ENTRIES, create_model, resolve_name, stored_arguments
from vitreous.runs.model_config import CONFIG

# Prefixes of keys that only models with a head have, in OpenMMLab's toolboxes.
OPENMMLAB_PREFIXES = ("neck.", "decode_head.", "bbox_head.", "rpn_head.", "roi_head.", "keypoint_head.")
# Under which keys training scripts store their settings, and in these the name of the model.
SETTINGS_KEYS = ("args", "config", "cfg", "hyper_parameters", "meta")
MISFIT_HINT = (
    "give the model they were made for (vitreous info lists all) and its --model-args, or the run folder they are from"
)
MODEL_NAME_KEYS = ("architecture", "arch", "model", "model_name", "net")

_logger = logging.getLogger(__name__)


class Guess(NamedTuple):
    name: str
    reason: str


def load_file_model(
    source: str, architecture: str | None, arguments: dict[str, Any], *, headless: bool = False
) -> tuple[Any, str]:
    """A classifier from a file or URL, and its name: the given one, or one found from the file.

    `arguments`: what it was built with, besides the arguments of its name. `headless`: without a classifier will do.
    """
    path = local_file(source)
    content = open_checkpoint(path)
    tensors = read_tensors(content, name=source)
    if any(key.startswith(OPENMMLAB_PREFIXES) for key in tensors):
        raise InputError(
            f"{source} holds a detector or segmenter in the names of OpenMMLab's toolboxes; start a run from it: "
            "vitreous train NAME DATA --task TASK --weights FILE (docs/from-mm.md)"
        )
    state = read_state(tensors, name=source)
    guess = Guess(architecture, "as given") if architecture is not None else guess_name(source, path, content, state)
    name = resolve_name(guess.name)
    with explain_bad_arguments(name, arguments):
        model = model_with_weights(name, state, source, arguments)
    if not model.num_classes and not headless:
        raise InputError(
            f"{source} holds no classifier for {name}, so there is nothing to predict; train one on top of it: "
            f"vitreous train {name} DATA --weights {source}"
        )
    if isinstance(model, Backbone):
        require_all_tensors(model, state, source, name)
    if architecture is None:
        _logger.info("%s: %s with %d classes, %s", path.name, guess.name, model.num_classes, guess.reason)
    return model, name


# Which model it is -------------------------------------------------------------------------------------


def guess_name(source: str, path: Path, content: Mapping[str, Any], state: dict[str, Tensor]) -> Guess:
    """The name stored in the file; else that of a published file; else the only model with these shapes."""
    for name, reason in [*stored_names(path, content), *published_names(path)]:
        with suppress(InputError):
            return Guess(resolve_name(name), reason)
    fitting = [name for name in ENTRIES if fits_model(name, state)]
    named = name_in_file_name(path.stem)
    if len(fitting) == 1:
        return Guess(fitting[0], "the only model here with tensors of these shapes")
    if named is not None and (named in fitting or not fitting):
        return Guess(named, "as its name says")
    which = f"it fits {', '.join(fitting)}" if fitting else f"it is {describe_layout(state)}"
    raise InputError(f"{source} does not say which model it belongs to; {which}. Give it: --model NAME (vitreous info)")


def stored_names(path: Path, content: Mapping[str, Any]) -> Iterator[Guess]:
    """Names of models that are stored in the file or beside it."""
    places: list[tuple[str, Any]] = [("", content), *((f"{place}.", content.get(place)) for place in SETTINGS_KEYS)]
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            places.append(("metadata.", file.metadata()))
    if path.name in WEIGHTS_FILES and (path.parent / CONFIG).is_file():
        places.append((f"{CONFIG}: ", read_stored_json(path.parent / CONFIG)))
    for place, values in places:
        known = vars(values) if isinstance(values, argparse.Namespace) else values
        if isinstance(known, Mapping):
            found = ((name, known.get(name)) for name in MODEL_NAME_KEYS)
            yield from (
                Guess(value, f"as its entry {place}{key} says") for key, value in found if isinstance(value, str)
            )


def published_names(path: Path) -> Iterator[Guess]:
    """Published weights with this file name, including their tag, which determines the image size."""
    for entry in ENTRIES.values():
        for full in (f"{entry.name}.{tag}" for tag in entry.tags):
            if str(getattr(get_pretrained_cfg(full), "url", "")).rpartition("/")[2] == path.name:
                yield Guess(full, "as the published file of that name")


def name_in_file_name(stem: str) -> str | None:
    """The longest of our models' names in a file name, or one of timm's that it begins with."""
    stem = stem.lower()
    ours = [name for name in (*ENTRIES, *ALIASES) if name in stem.replace("-", "_")]
    theirs = [part for part in (stem, re.split(r"[-.]", stem)[0]) if is_model(part)]
    return max(ours or theirs, key=len, default=None)


def fits_model(name: str, state: dict[str, Tensor]) -> bool:
    with torch.device("meta"):
        model: Any = create_model(name)
    try:
        renamed = model.translate(state)
    except (AttributeError, IndexError, KeyError, RuntimeError, ValueError):  # names like ours, with other contents
        return False
    return trunk_shapes(renamed) == trunk_shapes(model.state_dict())


def trunk_shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    inner = (key for key in state if not key.startswith("head.") and not REBUILT_KEYS.search(key))
    return {key: tuple(state[key].shape) for key in inner}


# Building it -------------------------------------------------------------------------------------------


def model_with_weights(name: str, state: dict[str, Tensor], source: str, arguments: dict[str, Any], **kind: Any) -> Any:
    """The model with the classes of its weights or, with features_only=True, its backbone."""
    check_finite(state, source)  # timm's models do not check, and ours do not know the source
    architecture = resolve_name(stored_arguments(name)[0])
    classes = classes_in(architecture, state)
    overlay = {"state_dict": state, "num_classes": classes}
    whole: dict[str, Any] = {"num_classes": classes}
    kinds: Iterable[dict[str, Any]] = [kind or whole]
    if kind and architecture.partition(".")[0] not in ENTRIES:
        kinds = [whole, kind]  # timm compares keys only when it loads a whole model
    try:
        with quiet_timm():
            for wanted in kinds:
                model: Any = timm.create_model(
                    architecture, pretrained=True, pretrained_cfg_overlay=overlay, **wanted, **arguments
                )
    except MisfitError as reason:
        raise MisfitError(f"the weights {source} do not fit {name}", reason.lines, MISFIT_HINT) from reason
    except RuntimeError as reason:
        with torch.device("meta"):
            own = timm.create_model(architecture, **whole, **arguments).state_dict()
        lines = describe_misfit(own, state) or str(reason).splitlines()[:2]
        raise MisfitError(f"the weights {source} do not fit {name}", lines, MISFIT_HINT) from reason
    for config in (model.pretrained_cfg, model.default_cfg):
        config.pop("state_dict", None)  # otherwise every copy of the model would carry the weights
    return model


@contextmanager
def explain_bad_arguments(name: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Turn whatever models raise for bad arguments into one kind of InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as reason:
        if not arguments:
            raise
        raise InputError(
            f"model '{name}' does not accept {describe_arguments(arguments)} ({reason_of(reason)})"
        ) from reason


def describe_arguments(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={excerpt(value)}" for name, value in arguments.items())


def classes_in(architecture: str, state: dict[str, Tensor]) -> int:
    """Number of classes of the classifier in a file; 0 if it has none."""
    config = get_pretrained_cfg(architecture)
    classifier = None if config is None else config.classifier
    names = [classifier] if isinstance(classifier, str) else list(classifier or ())
    heads = [state[f"{name}.weight"] for name in names if f"{name}.weight" in state]
    return len(heads[0]) if heads else 0


def require_all_tensors(model: Backbone, state: dict[str, Tensor], source: str, name: str) -> None:
    """Refuse missing layers: training may re-initialise them, but predictions would be random."""
    own = {key: value for key, value in model.state_dict().items() if not REBUILT_KEYS.search(key)}
    lines = describe_misfit(own, model.translate(state), original=state)
    if lines:
        raise MisfitError(f"the weights {source} do not fit {name}", lines, MISFIT_HINT)


@contextmanager
def quiet_timm() -> Iterator[None]:
    """Silence timm's messages about keys: we report what does not fit."""
    logger = logging.getLogger("timm")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
