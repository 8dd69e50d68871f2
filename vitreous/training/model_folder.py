"""A trained model as a folder, and the one function through which every verb gets a model.

    best/
      model.safetensors   weights
      config.json         timm's hub format, plus our task, classes and preprocessing under "vitreous"
      manifest.json       size and sha256 of both

`timm.create_model("local-dir:best", pretrained=True)` reads the same folder (our models need `import vitreous`).
"""

from pathlib import Path
from typing import Any, NamedTuple

import safetensors
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import vitreous
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.registry import create_model
from vitreous.training.storage import (
    DamagedError,
    publish_folder,
    published,
    read_json,
    verify_folder,
    write_json,
)

WEIGHTS, CONFIG = "model.safetensors", "config.json"
PREFERRED = ("best", "final")  # which model of a run folder is meant


class TrainedModel(NamedTuple):
    model: nn.Module  # in eval mode, on the CPU
    name: str
    task: str
    classes: tuple[str, ...]
    preprocess: Preprocess


def save_model(
    folder: str | Path,
    model: nn.Module,
    *,
    name: str,
    model_args: dict[str, Any],
    task: str,
    classes: tuple[str, ...],
    preprocess: Preprocess,
) -> None:
    """Write a model folder; one that is already there is replaced only when the new one is complete."""
    config = _config(model, name, model_args, task, classes, preprocess)

    def write(aside: Path) -> None:
        save_file(_storable(model.state_dict()), aside / WEIGHTS, metadata={"format": "pt"})
        write_json(aside / CONFIG, config)

    publish_folder(Path(folder), write)


def load_model(source: str | Path) -> TrainedModel:
    """A model from a run folder (`best/`, else `final/`), a model folder, or the registry by name.

    A name, with or without a tag (`paca_tiny.ivmcl_in1k`), means the published weights.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return _load_folder(_model_folder(path))
    if path.exists():
        raise InputError(f"'{source}' is a file; give a run folder, a model folder or a model name (vitreous info)")
    if "/" in str(source) or "\\" in str(source):
        raise InputError(f"there is no folder '{source}'; give a run folder, a model folder or a model name")
    return _load_published(str(source))


def _model_folder(path: Path) -> Path:
    if (path / CONFIG).exists():
        return path
    for name in PREFERRED:
        found = published(path / name)
        if found is not None:
            return found
    if (path / "run.json").exists():
        raise InputError(f"run folder '{path}' holds no model yet; one appears after the first epoch of training")
    raise InputError(
        f"'{path}' is neither a run folder (with {PREFERRED[0]}/ or {PREFERRED[1]}/) "
        f"nor a model folder (with {CONFIG} and {WEIGHTS})"
    )


def _load_folder(folder: Path) -> TrainedModel:
    verify_folder(folder, (WEIGHTS, CONFIG))
    config = read_json(folder / CONFIG)
    try:
        ours = config["vitreous"]
        name, model_args = config["architecture"], _tuples(config["model_args"])
        classes, task = tuple(ours["classes"]), ours["task"]
        preprocess = Preprocess.from_dict(ours["preprocess"])
        state = load_file(folder / WEIGHTS)
    except (KeyError, TypeError, AttributeError) as reason:
        raise DamagedError(f"{folder / CONFIG} was not written by vitreous: {reason!r} is missing or wrong") from reason
    except safetensors.SafetensorError as reason:
        raise DamagedError(f"{folder / WEIGHTS} is not a safetensors file: {reason}") from reason
    model = create_model(name, num_classes=config["num_classes"], **model_args)
    _fill(model, state, folder / WEIGHTS)
    return TrainedModel(model.eval(), name, task, classes, preprocess)


def _load_published(name: str) -> TrainedModel:
    from timm.data import resolve_model_data_config

    model = create_model(name, pretrained=True)
    data = resolve_model_data_config(model)
    preprocess = Preprocess(
        size=tuple(data["input_size"][1:]),
        crop_ratio=data["crop_pct"],
        interpolation=data["interpolation"],
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
    )
    return TrainedModel(model.eval(), name, "classify", _published_classes(model), preprocess)


def _published_classes(model: Any) -> tuple[str, ...]:
    """Names of ImageNet's classes where timm knows them; otherwise their indices."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    names = model.pretrained_cfg.get("label_names")
    if names:
        return tuple(names)
    subset = infer_imagenet_subset(model)
    if subset is None:
        return tuple(str(index) for index in range(model.num_classes))
    return tuple(ImageNetInfo(subset).label_descriptions(detailed=False))


def _tuples(value: Any) -> Any:
    """JSON turned the tuples among a model's arguments into lists; models expect tuples."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return {key: _tuples(item) for key, item in value.items()} if isinstance(value, dict) else value


def _fill(model: nn.Module, state: dict[str, Tensor], origin: Path) -> None:
    try:
        model.load_state_dict(state)
    except RuntimeError as reason:
        raise InputError(f"the weights in {origin} do not fit the model in its {CONFIG}: {reason}") from reason


def _storable(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies on the CPU: safetensors refuses views and tensors that share memory."""
    return {key: tensor.detach().to("cpu").clone().contiguous() for key, tensor in state.items()}


def _config(
    model: Any,
    name: str,
    model_args: dict[str, Any],
    task: str,
    classes: tuple[str, ...],
    preprocess: Preprocess,
) -> dict[str, Any]:
    inherited = dict(getattr(model, "pretrained_cfg", None) or {})
    # Without its tag, which names published weights: these are others.
    architecture = inherited.get("architecture") or name.split(".")[0]
    pretrained_cfg = {key: inherited[key] for key in ("first_conv", "classifier", "pool_size") if key in inherited} | {
        "input_size": [3, *preprocess.size],
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "crop_pct": preprocess.crop_ratio,
        "interpolation": preprocess.interpolation,
        "num_classes": len(classes),
        "label_names": list(classes),
    }
    return {
        "architecture": architecture,
        "num_classes": len(classes),
        "num_features": getattr(model, "num_features", None),
        "pretrained_cfg": pretrained_cfg,
        "model_args": model_args,
        "vitreous": {
            "version": vitreous.__version__,
            "task": task,
            "classes": list(classes),
            "preprocess": preprocess.to_dict(),
        },
    }
