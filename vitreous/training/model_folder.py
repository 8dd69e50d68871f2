"""A trained model as a folder, and the one function through which every verb gets a model.

    best/
      model.safetensors   weights
      config.json         timm's hub format, plus our task, classes and preprocessing under "vitreous"
      manifest.json       size and sha256 of both

`timm.create_model("local-dir:best", pretrained=True)` reads the same folder (our models need `import vitreous`).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import vitreous
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.manifest import DamagedError, read_json, verify_folder
from vitreous.models.base import Backbone
from vitreous.models.weights import misfit
from vitreous.registry import create_model
from vitreous.training.device import choose_device
from vitreous.training.distributed import ALONE, World
from vitreous.training.parallel import whole
from vitreous.training.storage import publish_folder, published, write_json

WEIGHTS, CONFIG = "model.safetensors", "config.json"
PREFERRED = ("best", "final")  # which model of a run folder is meant

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


class TrainedModel(NamedTuple):
    model: nn.Module  # in eval mode, on the CPU
    name: str
    task: str
    classes: tuple[str, ...]
    preprocess: Preprocess


class ModelConfig(NamedTuple):
    """What a model folder's config.json says, read and checked."""

    architecture: str
    model_args: dict[str, Any]
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
    world: World = ALONE,
) -> None:
    """Write a model folder; one that is already there is replaced only when the new one is complete.

    Of several processes the first writes, but all must call: each may hold only a part of the model.
    """
    config = _config(model, name, model_args, task, classes, preprocess)

    state = _storable(model.state_dict(), world)

    def write(aside: Path) -> tuple[str, ...]:
        save_file(state, aside / WEIGHTS, metadata={"format": "pt"})
        write_json(aside / CONFIG, config)
        return WEIGHTS, CONFIG

    world.on_main(lambda: publish_folder(Path(folder), write))


def load_model(source: str | Path, *, size: int | None = None) -> TrainedModel:
    """A model from a run folder (`best/`, else `final/`), a model folder, or the registry by name.

    A name, with or without a tag (`paca_tiny.ivmcl_in1k`), means the published weights. `size` is the height and width
    to use the model with, where it is not to be the one it was trained with.
    """
    folder = find_model_folder(source)
    trained = _load_published(str(source)) if folder is None else _load_folder(folder)
    return trained if size is None else at_size(trained, size)


def at_size(trained: TrainedModel, size: int) -> TrainedModel:
    """The model with another image size. Many of timm's take one size only, and only running them shows it."""
    refusal = refusal_of_size(trained.model, size)
    if refusal is not None:
        height, width = trained.preprocess.size
        raise InputError(
            f"model '{trained.name}' cannot take images of {size}x{size} pixels ({refusal}); "
            f"it was trained with {height}x{width}: leave this size out, or train the model at the size you need"
        )
    return trained._replace(preprocess=replace(trained.preprocess, size=(size, size)))


def refusal_of_size(model: nn.Module, size: int) -> str | None:
    """Why a classifier cannot take images of this height and width; None if it can."""
    if isinstance(model, Backbone):  # ours take every size above the smallest
        smallest = model.strides[-1]
        return None if size >= smallest else f"the smallest this model can take is {smallest}x{smallest}"
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, 3, size, size, device=next(model.parameters()).device))
    except (AssertionError, RuntimeError, ValueError) as reason:  # timm's have no common way to say so
        return (str(reason).splitlines() or [type(reason).__name__])[0]
    finally:
        model.train(training)
    return None


def class_columns(trained: TrainedModel, classes: tuple[str, ...]) -> tuple[int, ...]:
    """Where each of these classes is in the model's output, by name."""
    known = trained.classes if classes[0] in trained.classes else _synsets(trained)
    unknown = [name for name in classes if name not in known]
    if unknown:
        raise InputError(
            f"the model '{trained.name}' does not know the class {unknown[0]!r} of the data; its classes are "
            f"{', '.join(trained.classes[:8])}{', …' if len(trained.classes) > 8 else ''}"
        )
    position = {name: index for index, name in enumerate(known)}
    return tuple(position[name] for name in classes)


def _synsets(trained: TrainedModel) -> tuple[str, ...]:
    """ImageNet folders are named by WordNet number; published models list readable names in the same order."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(trained.model)
    return tuple(ImageNetInfo(subset).label_names()) if subset is not None else trained.classes


def load_classifier(source: str | Path, *, size: int | None, device: str) -> TrainedModel:
    """A model that was trained to classify, on its device."""
    place = choose_device(device)
    trained = load_model(source, size=size)
    if trained.task != "classify":
        raise InputError(f"model '{source}' was trained for the task '{trained.task}'; this verb needs a classifier")
    trained.model.to(place)
    return trained


def find_model_folder(source: str | Path) -> Path | None:
    """The model folder that a run folder or model folder stands for; None for what must be a model name."""
    path = Path(source).expanduser()
    if path.is_dir():
        return _model_folder(path)
    if path.exists():
        raise InputError(f"'{source}' is a file; give a run folder, a model folder or a model name (vitreous info)")
    if "/" in str(source) or "\\" in str(source):
        raise InputError(f"there is no folder '{source}'; give a run folder, a model folder or a model name")
    return None


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


def read_config(folder: Path) -> ModelConfig:
    """Check the folder against its manifest and every field of its config; what is wrong is named with its file."""
    verify_folder(folder, (WEIGHTS, CONFIG))
    path = folder / CONFIG
    content = read_json(path)
    if not isinstance(content, dict):
        raise DamagedError(f"{path} holds a {type(content).__name__}; a dictionary is needed")
    ours = _field(path, content, "vitreous", dict)
    architecture = _field(path, content, "architecture", str)
    if ":" in architecture:
        raise _wrong(path, "architecture", architecture, "the name of a model (vitreous info), not an address")
    model_args = _field(path, content, "model_args", dict)
    for name in model_args.keys() & RESERVED:
        raise _wrong(path, f"model_args.{name}", model_args[name], "left out: it is no argument of a model")
    classes = _field(path, ours, "classes", list)
    if not all(isinstance(name, str) for name in classes):
        raise _wrong(path, "classes", classes, "a list of names")
    count = _field(path, content, "num_classes", int)
    if isinstance(count, bool) or count != len(classes):
        raise _wrong(path, "num_classes", count, f"{len(classes)}, the number of names in 'classes'")
    values = _field(path, ours, "preprocess", dict)
    try:
        preprocess = Preprocess.from_dict(values)
    except (InputError, TypeError) as reason:
        raise _wrong(path, "preprocess", values, f"preprocessing as vitreous writes it ({reason})") from reason
    return ModelConfig(architecture, _tuples(model_args), _field(path, ours, "task", str), tuple(classes), preprocess)


def _field(path: Path, content: dict[str, Any], name: str, kind: type) -> Any:
    if name not in content:
        raise DamagedError(f"{path}: the field '{name}' is missing; the file was not written by vitreous")
    if not isinstance(content[name], kind):
        kinds = {dict: "a dictionary", list: "a list", str: "a text", int: "a whole number"}
        raise _wrong(path, name, content[name], kinds[kind])
    return content[name]


def _wrong(path: Path, name: str, given: Any, accepted: str) -> DamagedError:
    shown = repr(given) if len(repr(given)) <= 80 else f"{repr(given)[:80]}…"
    return DamagedError(f"{path}: the field '{name}' is {shown}; it must be {accepted}")


def build_architecture(folder: Path, config: ModelConfig) -> nn.Module:
    """The model that a folder's config describes, without its weights."""
    try:
        return create_model(config.architecture, num_classes=len(config.classes), **config.model_args)
    except InputError as reason:
        raise InputError(f"{folder / CONFIG} describes no model that can be built: {reason}") from reason
    except Exception as reason:  # arguments that do not fit make models fail in their own ways, all meaning this
        raise InputError(
            f"{folder / CONFIG}: 'model_args' does not fit the architecture '{config.architecture}' "
            f"({type(reason).__name__}: {reason})"
        ) from reason


def _load_folder(folder: Path) -> TrainedModel:
    config = read_config(folder)
    model = build_architecture(folder, config)
    try:
        state = load_file(folder / WEIGHTS)
    except safetensors.SafetensorError as reason:
        raise DamagedError(f"{folder / WEIGHTS} is not a safetensors file: {reason}") from reason
    _fill(model, state, folder / WEIGHTS)
    return TrainedModel(model.eval(), config.architecture, config.task, config.classes, config.preprocess)


def _load_published(name: str) -> TrainedModel:
    return data_of(create_model(name, pretrained=True).eval(), name)


def data_of(model: nn.Module, name: str) -> TrainedModel:
    """A classifier with what timm's configuration of it tells about its images and classes."""
    from timm.data import resolve_model_data_config

    data = resolve_model_data_config(model)
    preprocess = Preprocess(
        size=tuple(data["input_size"][1:]),
        crop_ratio=data["crop_pct"],
        interpolation=data["interpolation"],
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
    )
    return TrainedModel(model, name, "classify", _published_classes(model), preprocess)


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
    wrong = misfit(model.state_dict(), state)
    if wrong:
        raise InputError(f"the weights in {origin} do not fit the model in its {CONFIG}:\n" + "\n".join(wrong))
    model.load_state_dict(state)


def _storable(state: dict[str, Tensor], world: World) -> dict[str, Tensor]:
    """Contiguous copies on the first process's CPU: safetensors refuses views and tensors that share memory."""
    copies = {}
    for key, tensor in state.items():
        gathered = whole(tensor.detach())
        if world.main:
            copies[key] = gathered.to("cpu").clone().contiguous()
    return copies


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
