"""A trained model as a folder, and the one function through which every verb gets a model.

    best/
      model.safetensors   weights
      config.json         timm's hub format, plus our task, classes and preprocessing under "vitreous"
      manifest.json       size and sha256 of both

`timm.create_model("local-dir:best", pretrained=True)` reads the same folder (our models need `import vitreous`).
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import safetensors
from safetensors.torch import load_file, save_file
from timm.models import is_model_pretrained
from torch import nn

from vitreous.attribution.learned import carry_explainer
from vitreous.data.transforms import ImageSize, Preprocess
from vitreous.errors import InputError
from vitreous.exports.folder import is_exported, load_exported
from vitreous.files.reading import truncate
from vitreous.files.storage import MANIFEST, DamagedError, find_published, publish_folder, write_json
from vitreous.models.arguments import parse_model_arg
from vitreous.models.weights import MisfitError, check_finite, describe_misfit, local_file, local_path
from vitreous.registry import construction_limit, create_model, resolve_name, stored_bytes
from vitreous.runs.any_model import from_timm
from vitreous.runs.hub import hub_folder, is_hub_address
from vitreous.runs.model_config import CONFIG, WEIGHTS, ModelConfig, make_config, read_config, timm_config
from vitreous.runs.trained_model import TrainedModel, at_size, is_classifier, is_whole, number_names
from vitreous.runs.weights_file import load_file_model
from vitreous.runtime.device import choose_device
from vitreous.runtime.distributed import SINGLE_PROCESS, World
from vitreous.runtime.parallel import full_tensor
from vitreous.tasks.base import load_task

WEIGHT_FILES = (".pth", ".pt", ".safetensors", ".bin", ".ckpt", ".th", ".tar")
EXPLAINER_FOLDER = "explainer"
PREFERRED = ("best", "final")  # which model of a run folder is meant


def save_model(
    folder: str | Path,
    model: nn.Module,
    *,
    name: str,
    model_args: dict[str, Any],
    task: str,
    classes: tuple[str, ...],
    preprocess: Preprocess,
    task_args: Mapping[str, Any] = MappingProxyType({}),
    val_fraction: float | None = None,
    world: World = SINGLE_PROCESS,
) -> None:
    """Write a model folder; one that is already there is replaced only when the new one is complete.

    Of several processes the first writes, but all must call: each may hold only a part of the model.
    """
    config = make_config(model, name, model_args, task, classes, preprocess, task_args, val_fraction)
    # Contiguous copies on the first process's CPU: safetensors refuses views and tensors that share memory.
    state = {}
    for key, tensor in model.state_dict().items():
        gathered = full_tensor(tensor.detach())
        if world.main:
            state[key] = gathered.to("cpu").clone().contiguous()

    def write(staging: Path) -> tuple[str, ...]:
        save_file(state, staging / WEIGHTS, metadata={"format": "pt"})
        write_json(staging / CONFIG, config)
        return WEIGHTS, CONFIG

    world.on_main(lambda: publish_folder(Path(folder), write))


def load_model(
    source: str | Path,
    *,
    architecture: str | None = None,
    model_args: tuple[str, ...] = (),
    size: ImageSize | None = None,
    device: str = "cpu",
    features: bool = False,
) -> TrainedModel:
    """A model from a run folder (`best/`, else `final/`), a model folder, a file of weights, the Hugging Face hub
    (`hf:owner/name`, or `hf:owner/name@revision`), or the registry by name; or one that `vitreous export` has
    written, which answers but has no gradients.

    A name, with or without a tag (`paca_tiny.ivmcl_in1k`), means the published weights. A file (.pth, .safetensors, or
    the URL of one) is of the `architecture` of that name, or of the one that it tells itself, built with `model_args`
    (`"stem_stride=2"`). `size` is the height and width to use the model with, where it is not to be the one it was
    trained with: one number for both, or "4000x6000". With `features`, one without a classifier will do.
    """
    place = choose_device(device)
    if is_weights_file(source):
        trained = _load_file(str(source), architecture, dict(parse_model_arg(text) for text in model_args), features)
    else:
        folder = find_model_folder(source)
        if architecture is not None or model_args:
            given = f"--model {architecture}" if architecture is not None else f"--model-args {' '.join(model_args)}"
            known = resolve_name(str(source)) if folder is None else source
            raise InputError(f"{given} goes with a file of weights; '{known}' is none, and brings its own model")
        if folder is None:
            trained = data_of(create_model(str(source), pretrained=True).eval(), str(source))
        elif is_hub_address(source) and not (folder / MANIFEST).is_file():
            trained = data_of(_made_by_timm(folder, str(source)), str(source))
        else:
            trained = _load_folder(folder)
    if is_whole(trained) and not trained.classes and not features:
        raise InputError(
            f"model '{source}' has no classifier, so that it gives features and no answers; use vitreous embed, or "
            f"evaluate --knn or --linear, or train one on top of it: vitreous train NAME DATA --weights …"
        )
    explainer = explainer_folder_of(str(source))
    if explainer is not None:
        carry_explainer(trained.model, explainer)
    trained.model.to(place)
    if size is None:
        return trained
    resized = at_size(trained, size)
    if is_whole(resized):
        _tell_timm(resized.model, input_size=(3, *resized.preprocess.size))
    return resized


def load_classifier(source: str | Path, *, size: int | None, device: str) -> TrainedModel:
    """A model that was trained to classify, on its device."""
    trained = load_model(source, size=size, device=device)
    if not is_classifier(trained):
        raise InputError(f"model '{source}' was trained for the task '{trained.task}'; this verb needs a classifier")
    return trained


def is_weights_file(source: str | Path) -> bool:
    """Whether this is a file of weights by its name, there or not, or the address of one."""
    if is_hub_address(source):
        return False
    path = local_path(str(source))
    if path is None:
        return True
    if path.suffix.lower() not in WEIGHT_FILES or path.is_dir():
        return False
    return path.is_file() or not is_model_pretrained(str(source))  # .pt is also a tag of timm's


def weights_path(source: str) -> Path:
    """Where a file of weights is, which must be there; one behind an address is fetched."""
    path = local_file(source)
    if not path.is_file():
        raise _no_file(source)
    return path


def _no_file(source: str | Path) -> InputError:
    return InputError(f"there is no file '{source}'; give a file of weights, a run folder, a model folder or a name")


def explainer_folder_of(source: str) -> Path | None:
    """Where the explainer of a model is, or would be: beside its weights; a model known by name only has no place."""
    if not is_weights_file(source):
        folder = find_model_folder(source)
        return None if folder is None else folder / EXPLAINER_FOLDER
    path = weights_path(source)
    return path.parent / EXPLAINER_FOLDER if path.name == WEIGHTS else path.with_suffix(f".{EXPLAINER_FOLDER}")


def find_model_folder(source: str | Path) -> Path | None:
    """The model folder that a run folder, a model folder or an address on the hub stands for; None for what must be a
    model name.
    """
    if is_hub_address(source):
        return hub_folder(str(source))
    path = local_path(str(source))
    if path is not None and path.is_dir():
        return _model_folder(path)
    if path is None or path.exists():
        raise InputError(
            f"'{source}' is a file; give a run folder, a model folder or a model name (vitreous info), or, where "
            f"weights alone will do, a file of them ({', '.join(WEIGHT_FILES)})"
        )
    if is_weights_file(source):
        raise _no_file(source)
    if "/" in str(source) or "\\" in str(source):
        raise InputError(f"there is no folder '{source}'; give a run folder, a model folder or a model name")
    return None


def _model_folder(path: Path) -> Path:
    if (path / CONFIG).exists():
        return path
    for name in PREFERRED:
        found = find_published(path / name)
        if found is not None:
            return found
    if (path / "run.json").exists():
        raise InputError(f"run folder '{path}' holds no model yet; one appears after the first epoch of training")
    raise InputError(
        f"'{path}' is neither a run folder (with {PREFERRED[0]}/ or {PREFERRED[1]}/) "
        f"nor a model folder (with {CONFIG} and {WEIGHTS})"
    )


def build_architecture(folder: Path, config: ModelConfig) -> nn.Module:
    """The model that a folder's config describes, without its weights."""
    try:
        with construction_limit(stored_bytes(folder)):
            task = load_task(config.task)(config.classes, **config.task_args)
            kind = {"features_only": True} if task.on_feature_maps else {"num_classes": len(config.classes)}
            return task.model(create_model(config.architecture, **kind, **config.model_args))
    except InputError as reason:
        raise InputError(
            f"{folder / CONFIG} describes no model that can be built: {truncate(str(reason), 800)}"
        ) from reason
    except Exception as reason:  # arguments that do not fit make models fail in their own ways, all meaning this
        raise InputError(
            f"{folder / CONFIG}: 'model_args' does not fit the architecture '{truncate(config.architecture)}' "
            f"({type(reason).__name__}: {truncate(str(reason), 800)})"
        ) from reason


def _load_folder(folder: Path) -> TrainedModel:
    if is_exported(folder):
        return _load_exported(folder)
    config = read_config(folder)
    model = build_architecture(folder, config)
    try:
        state = load_file(folder / WEIGHTS)
    except safetensors.SafetensorError as reason:
        raise DamagedError(f"{folder / WEIGHTS} is not a safetensors file: {reason}") from reason
    if wrong := describe_misfit(model.state_dict(), state):
        subject = f"the weights in {folder / WEIGHTS} do not fit the model in its {CONFIG}"
        raise MisfitError(subject, wrong, "take both files from one folder")
    check_finite(state, str(folder / WEIGHTS))
    model.load_state_dict(state)
    return _described(model.eval(), config)


def _made_by_timm(folder: Path, source: str) -> nn.Module:
    """A classifier that timm itself put on the hub."""
    import timm

    try:
        return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    except Exception as reason:  # what does not fit makes timm fail in many ways, all meaning this
        raise InputError(
            f"{source} cannot be built by timm ({type(reason).__name__}: {truncate(str(reason), 400)})"
        ) from reason


def _load_exported(folder: Path) -> TrainedModel:
    config = read_config(folder, exported=True)
    return _described(load_exported(folder, len(config.classes)), config)


def _described(model: nn.Module, config: ModelConfig) -> TrainedModel:
    trained = TrainedModel(
        model,
        config.architecture,
        config.task,
        config.classes,
        config.preprocess,
        config.task_args,
        config.val_fraction or 1.0,
    )
    if is_whole(trained):
        known = timm_config(config.preprocess, config.classes)
        _tell_timm(model, **known, crop_mode="center", label_names=config.classes)
    return trained


def _tell_timm(model: Any, **known: Any) -> None:
    """Let the module itself say what it is for, to `data_of` and to timm, in place of what its variant was made for."""
    model.pretrained_cfg = model.default_cfg = model.pretrained_cfg | known


def _load_file(source: str, architecture: str | None, arguments: dict[str, Any], features: bool) -> TrainedModel:
    path = weights_path(source)
    if architecture is None and not arguments and path.name == WEIGHTS and (path.parent / MANIFEST).is_file():
        return _load_folder(path.parent)  # which knows more than the file
    model, name = load_file_model(source, architecture, arguments, headless=features)
    return data_of(model.eval(), name)


def data_of(model: nn.Module, name: str) -> TrainedModel:
    """A classifier with what timm's configuration of it tells about its images and classes."""
    from timm.data import resolve_model_data_config

    preprocess = from_timm(resolve_model_data_config(model))
    return TrainedModel(model, name, "classify", _published_classes(model), preprocess)


def _published_classes(model: Any) -> tuple[str, ...]:
    """Names of ImageNet's classes where timm knows them; otherwise their indices."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    names = model.pretrained_cfg.get("label_names")
    if names:
        return tuple(names)
    subset = infer_imagenet_subset(model)
    if subset is None:
        return number_names(model.num_classes)
    return tuple(ImageNetInfo(subset).label_descriptions(detailed=False))
