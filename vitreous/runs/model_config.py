"""What a model folder's config.json says: timm's hub format, plus our task, classes and preprocessing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.exports.folder import EXPORT_JSON, is_exported
from vitreous.files.limits import MAX_ARGUMENT_VALUE, MAX_CLASS_NAME_CHARS, MAX_DATA_CLASSES
from vitreous.files.reading import excerpt, is_text, reading, truncate
from vitreous.files.storage import DamagedError, read_stored_json, verify_folder
from vitreous.registry import is_plausible_argument
from vitreous.version import __version__

WEIGHTS, CONFIG = "model.safetensors", "config.json"

# Arguments of `create_model` that are no arguments of a model: a folder must not make it fetch or read anything else.
RESERVED = {
    "cache_dir",
    "checkpoint_path",
    "features_only",
    "num_classes",
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "scriptable",
}


class ModelConfig(NamedTuple):
    """What a model folder's config.json says, read and checked."""

    architecture: str
    model_args: dict[str, Any]
    task: str
    classes: tuple[str, ...]
    preprocess: Preprocess
    task_args: dict[str, Any]  # what the task needs besides the classes: its head, the scale of its images
    val_fraction: float | None = None  # share of its data that was held out, where these had no splits


def read_config(folder: Path, *, exported: bool = False) -> ModelConfig:
    """Check the folder against its manifest and every field of its config; what is wrong is named with its file.

    Only who can use a graph in place of weights asks for `exported` models; others are told to take the run.
    """
    if is_exported(folder) and not exported:
        raise InputError(
            f"'{folder}' is an exported model, which is a graph without weights; give the run or the model folder that "
            "it was exported from"
        )
    verify_folder(folder, (EXPORT_JSON, CONFIG) if exported else (WEIGHTS, CONFIG))
    with reading(str(folder / CONFIG), remedy="it was not written by vitreous"):
        return _checked(folder / CONFIG)


def _checked(path: Path) -> ModelConfig:
    content = read_stored_json(path)
    if not isinstance(content, dict):
        raise DamagedError(f"{path} holds a {type(content).__name__}; a dictionary is needed")
    ours = _field(path, content, "vitreous", dict)
    architecture = _field(path, content, "architecture", str)
    if ":" in architecture:
        raise _wrong(path, "architecture", architecture, "the name of a model (vitreous info), not an address")
    model_args = _field(path, content, "model_args", dict)
    for name, value in model_args.items():
        if not is_plausible_argument(value):
            raise _wrong(
                path, f"model_args.{name}", value, f"made of texts and of numbers up to {MAX_ARGUMENT_VALUE:,}"
            )
    for name in model_args.keys() & RESERVED:
        raise _wrong(path, f"model_args.{name}", model_args[name], "left out: it is no argument of a model")
    classes = _field(path, ours, "classes", list)
    if len(classes) > MAX_DATA_CLASSES or not all(
        is_text(name) and len(name) <= MAX_CLASS_NAME_CHARS for name in classes
    ):
        raise _wrong(path, "classes", classes, "a list of names")
    count = _field(path, content, "num_classes", int)
    if isinstance(count, bool) or count != len(classes):
        raise _wrong(path, "num_classes", count, f"{len(classes)}, the number of names in 'classes'")
    values = _field(path, ours, "preprocess", dict)
    try:
        preprocess = Preprocess.from_dict(values)
    except (InputError, TypeError) as reason:
        raise _wrong(path, "preprocess", values, f"preprocessing as vitreous writes it ({reason})") from reason
    task, answer = _field(path, ours, "task", str), _field(path, {"task_args": {}} | ours, "task_args", dict)
    fraction = ours.get("val_fraction")
    if fraction is not None and not (isinstance(fraction, float) and 0 < fraction < 1):
        raise _wrong(path, "val_fraction", fraction, "a number above 0 and below 1")
    return ModelConfig(architecture, tuples(model_args), task, tuple(classes), preprocess, tuples(answer), fraction)


def _field(path: Path, content: dict[str, Any], name: str, kind: type) -> Any:
    if name not in content:
        raise DamagedError(f"{path}: the field '{name}' is missing; the file was not written by vitreous")
    if not isinstance(content[name], kind):
        kinds = {dict: "a dictionary", list: "a list", str: "a text", int: "a whole number"}
        raise _wrong(path, name, content[name], kinds[kind])
    return content[name]


def _wrong(path: Path, name: str, given: Any, accepted: str) -> DamagedError:
    return DamagedError(f"{path}: the field '{name}' is {excerpt(given)}; it must be {truncate(accepted, 400)}")


def tuples(value: Any) -> Any:
    """JSON turned the tuples among a model's arguments into lists; models expect tuples."""
    if isinstance(value, list):
        return tuple(tuples(item) for item in value)
    return {key: tuples(item) for key, item in value.items()} if isinstance(value, dict) else value


def timm_config(preprocess: Preprocess, classes: tuple[str, ...]) -> dict[str, Any]:
    """What timm wants to know about a model's pictures and classes, in its words."""
    return {
        "input_size": (3, *preprocess.size),
        "mean": preprocess.mean,
        "std": preprocess.std,
        "crop_pct": preprocess.crop_ratio,
        "interpolation": preprocess.interpolation,
        "num_classes": len(classes),
    }


def make_config(
    model: Any,
    name: str,
    model_args: dict[str, Any],
    task: str,
    classes: tuple[str, ...],
    preprocess: Preprocess,
    task_args: Mapping[str, Any],
    val_fraction: float | None = None,
) -> dict[str, Any]:
    """What a folder's config.json holds."""
    inherited = dict(getattr(model, "pretrained_cfg", None) or {})
    # Without its tag, which names published weights: these are others.
    architecture = inherited.get("architecture") or name.split(".")[0]
    pretrained_cfg = {key: inherited[key] for key in ("first_conv", "classifier", "pool_size") if key in inherited}
    pretrained_cfg |= timm_config(preprocess, classes)
    return {
        "architecture": architecture,
        "num_classes": len(classes),
        "label_names": list(classes),  # where timm writes it, and transformers looks for it
        "num_features": getattr(model, "num_features", None),
        "pretrained_cfg": pretrained_cfg,
        "model_args": model_args,
        "vitreous": {
            "version": __version__,
            "task": task,
            **({"task_args": dict(task_args)} if task_args else {}),
            "classes": list(classes),
            **({"val_fraction": val_fraction} if val_fraction is not None else {}),
            "preprocess": preprocess.to_dict(),
        },
    }
