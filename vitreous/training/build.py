"""From settings to the data of a run, the model to train, and its teacher if it has one."""

import hashlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from timm import get_pretrained_cfg
from torch import Tensor, nn

from vitreous.data.groups import CLASS_COLUMN, Balanced, group_pictures
from vitreous.data.loader import seed_everything
from vitreous.data.regions import find_regions
from vitreous.data.source import ImageSet, open_data
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.files.reading import reason_of
from vitreous.files.storage import json_text, sha256
from vitreous.models.weights import check_finite, local_file, local_path, read_state, read_tensors
from vitreous.registry import construction_limit, create_model, stored_arguments, stored_bytes
from vitreous.runs.model_config import RESERVED, WEIGHTS, read_config
from vitreous.runs.model_folder import find_model_folder, is_weights_file, load_classifier, weights_path
from vitreous.runs.trained_model import class_columns, refusal_of_size
from vitreous.runs.weights_file import OPENMMLAB_PREFIXES, describe_arguments, explain_bad_arguments, model_with_weights
from vitreous.runtime.distributed import CollectiveInputError, World
from vitreous.tasks.base import Task, load_task
from vitreous.tasks.classify import Distillation, Teacher
from vitreous.training.optim import layered_part
from vitreous.training.settings import TrainSettings

INITIAL_WEIGHTS, INITIAL_HEAD = 0, 3  # first number of the key, as in train.py
MASKS_TRIED = 50  # of the masks, spread over the data, of which one must show an object where masks are asked for


class TrainingParts(NamedTuple):
    """What a run trains, and on what terms."""

    model: nn.Module
    model_args: dict[str, Any]
    task: Task
    preprocess: Preprocess
    note: str  # for the user: where its weights come from; may be empty


def build_training(settings: TrainSettings, images: ImageSet, device: torch.device) -> TrainingParts:
    """The model, whole or of backbone and head, and the task it is to learn on these images."""
    arguments, kind = model_arguments(settings), load_task(settings.task)
    task = kind.from_settings(settings, images)
    if not kind.on_feature_maps:
        if len(task.sides(settings)) > 1:
            arguments |= several_sizes(settings.model, arguments)
        model, note = build_model(settings, arguments, len(task.classes), task.sides(settings))
        preprocess = preprocess_for(model, settings)
        distillation = build_distillation(settings, images.classes, preprocess, device)
        if distillation is not None:
            task.learn_from(distillation)
        seed_everything(settings.seed, INITIAL_HEAD)
        return TrainingParts(task.learner(model), arguments, task, preprocess, note)
    backbone, note = build_backbone(settings, arguments)
    preprocess = preprocess_for(backbone, settings)
    seed_everything(settings.seed, INITIAL_HEAD)  # the same head whatever the backbone starts from
    model = task.model(backbone)
    if settings.weights is not None and (dense := dense_folder(settings.weights)) is not None:
        note = load_dense_weights(model, backbone, load_file(dense / WEIGHTS), settings.weights)
    elif settings.weights is not None and is_openmmlab_release(settings.weights):
        report = str(task.load_release(model, local_file(settings.weights))).splitlines()[0]
        note = f"weights: {settings.weights}, in the names of OpenMMLab's toolboxes: {report}"
    return TrainingParts(task.learner(model), arguments, task, preprocess, note)


def model_arguments(settings: TrainSettings) -> dict[str, Any]:
    """All arguments to build the model: those stored with it or its weights, overridden by the user's.

    Models of timm for a fixed image size also get the size.
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


def several_sizes(model: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What lets a model of timm that is made for one image size take others, where it has such an argument."""
    architecture, _ = stored_arguments(model)
    config, asked = get_pretrained_cfg(architecture), {"dynamic_img_size": True}
    if config is None or not config.fixed_input_size or asked.keys() & arguments.keys():
        return {}
    try:
        with torch.device("meta"):
            create_model(architecture, **arguments, **asked)
    except Exception:  # models refuse arguments in their own ways; whether it takes the sizes is seen later
        return {}
    return asked


def build_model(
    settings: TrainSettings, arguments: dict[str, Any], classes: int, sides: tuple[int, ...] = ()
) -> tuple[Any, str]:
    """A whole model that takes images of these sides (default: of the settings), and a note on its weights."""
    seed_everything(settings.seed, INITIAL_WEIGHTS)
    with explain_bad_arguments(settings.model, arguments), _limit_of(settings):
        model, note = _initial_model(settings, arguments, classes)
    for side in sides or (settings.size,):
        refusal = refusal_of_size(model, side)
        if refusal is not None:
            raise InputError(
                f"model '{settings.model}' cannot take images of {side}x{side} pixels ({refusal}); "
                f"give it --size {model.pretrained_cfg['input_size'][-1]}, for which it was made, or what it needs for "
                "another size as --model-args"
            )
    _set_checkpointing(model, settings)
    return model, note


def build_backbone(settings: TrainSettings, arguments: dict[str, Any]) -> tuple[Any, str]:
    """A model that gives feature maps, for a head, and a note on its weights."""
    seed_everything(settings.seed, INITIAL_WEIGHTS)
    weights, origin = settings.weights, None
    try:
        if weights is not None and dense_folder(weights) is None and not is_openmmlab_release(weights):
            with _limit_of(settings):
                model, origin = _from_weights(settings, weights, arguments, features_only=True), weights
        else:
            origin = settings.model if settings.pretrained and weights is None else None
            model = create_model(settings.model, pretrained=origin is not None, features_only=True, **arguments)
    except InputError:
        raise
    except Exception as reason:
        if not arguments and not isinstance(reason, TypeError | AttributeError | RuntimeError):
            raise
        # This is how timm's models say that they give no maps.
        given = f", {describe_arguments(arguments)}" if arguments else ""
        raise InputError(f"model '{settings.model}'{given} cannot be a backbone ({reason_of(reason)})") from reason
    _set_checkpointing(getattr(model, "model", model), settings)
    return model, "" if origin is None else f"weights: the backbone's are those of {origin}; the head is new"


def _limit_of(settings: TrainSettings) -> AbstractContextManager[None]:
    """Arguments stored with weights must not ask for a larger model than these weights can fill."""
    folder = None if settings.weights is None else _folder(settings.weights)
    return nullcontext() if folder is None else construction_limit(stored_bytes(folder))


def load_dense_weights(model: nn.Module, backbone: nn.Module, state: dict[str, Tensor], source: str) -> str:
    """Load the weights of a run with a head: all of them if it is the same head, else the backbone's and what fits.

    Returns a note for the user.
    """
    check_finite(state, source)
    own = model.state_dict()
    fitting = {key: value for key, value in state.items() if key in own and own[key].shape == value.shape}
    if len(fitting) == len(own):
        model.load_state_dict(fitting)
        return f"weights: {source}, backbone and head"
    core = getattr(backbone, "model", backbone)
    (path,) = [path for path, module in model.named_modules() if module is core]
    names = [f"{path}.{key}" for key in core.state_dict()]
    end = names[0].removeprefix(path)
    there = [key.removesuffix(end) for key in state if key.endswith(end)]
    found = {name: f"{start}{name.removeprefix(path)}" for start in there[:1] for name in names}
    taken = {name: state[key] for name, key in found.items() if key in state and state[key].shape == own[name].shape}
    if len(taken) < len(names):
        raise InputError(
            f"the weights {source} do not fit: {len(taken)} of the backbone's {len(names)} tensors are there; give "
            "those of the same model, with the same --model-args"
        )
    heads = {key: value for key, value in fitting.items() if key not in taken}
    model.load_state_dict(taken | heads, strict=False)
    new = len(own) - len(taken) - len(heads)
    return f"weights: {source}; {new} of the head's {len(own) - len(taken)} tensors are new"


def _set_checkpointing(model: Any, settings: TrainSettings) -> None:
    if settings.grad_checkpointing == "off":
        return
    part = {} if settings.grad_checkpointing == "blocks" else {"part": settings.grad_checkpointing}
    try:
        model.set_grad_checkpointing(True, **part)
    except (AssertionError, AttributeError, TypeError) as reason:  # timm's models have no parts to choose
        raise InputError(
            f"model '{settings.model}' cannot save memory this way; leave out --grad-checkpointing, "
            "or cut the batches into pieces with --accumulate"
        ) from reason


def _initial_model(settings: TrainSettings, arguments: dict[str, Any], classes: int) -> tuple[Any, str]:
    if settings.weights is not None:
        model, origin = _from_weights(settings, settings.weights, arguments), settings.weights
    elif settings.pretrained:
        model, origin = create_model(settings.model, pretrained=True, **arguments), f"those of {settings.model}"
    else:
        return create_model(settings.model, num_classes=classes, **arguments), ""
    before = model.num_classes
    if before == classes:
        return model, f"weights: {origin}"
    model.reset_classifier(classes)
    if not classes:
        return model, f"weights: {origin}, without the classifier"
    instead = f" instead of {before}" if before else ""
    return model, f"weights: {origin}; the classifier is new, for {classes} classes{instead}"


def _from_weights(settings: TrainSettings, source: str, arguments: dict[str, Any], **kind: Any) -> Any:
    state = read_state(_folder(source) or source)
    return model_with_weights(settings.model, state, source, arguments, **kind)


def _folder(weights: str) -> Path | None:
    """The model folder that weights are in; None if they are a file."""
    path = local_path(weights)
    return find_model_folder(path) if path is not None and path.is_dir() else None


def dense_folder(weights: str) -> Path | None:
    """The model folder that weights are in, if it holds a model with a head; None for anything else."""
    folder = _folder(weights)
    return folder if folder is not None and load_task(read_config(folder).task).on_feature_maps else None


def is_openmmlab_release(weights: str) -> bool:
    """Whether this is a file that one of OpenMMLab's toolboxes wrote, with a head."""
    path = local_file(weights)
    return path.is_file() and any(key.startswith(OPENMMLAB_PREFIXES) for key in read_tensors(path))


def preprocess_for(model: Any, settings: TrainSettings) -> Preprocess:
    """The model's own colour statistics, at the requested size."""
    config = model.pretrained_cfg
    return Preprocess(
        size=(settings.size, settings.size),
        crop_ratio=settings.crop_ratio,
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


def freeze_all_but_head(model: Any) -> None:
    """Let a classifier learn alone, or a head on a backbone that stays."""
    if hasattr(model, "get_classifier"):
        learns = model.get_classifier()
        trained = list(learns.parameters()) if isinstance(learns, nn.Module) else []
        kept = model
    else:
        path, kept = layered_part(model)
        trained = [parameter for name, parameter in model.named_parameters() if not name.startswith(path)]
    if not trained:
        raise InputError("train_only head given, but this model has no classifier of its own; leave it out")
    kept.requires_grad_(False)
    for parameter in trained:
        parameter.requires_grad_(True)


def require_masks(settings: TrainSettings, images: ImageSet) -> None:
    """Refuse to teach looking at objects from data that know none; some pictures without a mask are fine."""
    if settings.attend_to != "masks":
        return
    known = [index for index in range(len(images)) if images.has_object_mask(index)]
    tried = known[:: max(1, len(known) // MASKS_TRIED)]
    if not any(images.object_mask(index) is not None for index in tried):
        raise InputError(
            f"--attend-to masks given, but '{settings.data}' has no masks of objects; use shapes, Oxford pets or class "
            "folders with masks beside them (docs/data.md), or --attend-away with regions"
        )


def regions_fingerprint(given: str) -> str:
    """Identifies the regions, so that a run continues with those that it began with."""
    described = json_text([region.to_dict() for region in find_regions(given)])
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def teacher_fingerprint(teacher: str) -> str:
    """Identifies the teacher, so that a run continues with the one it began with."""
    if is_weights_file(teacher):
        return f"{teacher} {sha256(weights_path(teacher))[:16]}"
    folder = find_model_folder(teacher)
    return teacher if folder is None else f"{teacher} {sha256(folder / WEIGHTS)[:16]}"


def build_distillation(
    settings: TrainSettings, classes: tuple[str, ...], shown: Preprocess, device: torch.device
) -> Distillation | None:
    """The teacher that the settings ask for, on its device."""
    if settings.teacher is None:
        return None
    trained = load_classifier(settings.teacher, size=None, device=str(device))
    if len(trained.classes) != len(classes):
        raise InputError(
            f"teacher '{settings.teacher}' has {len(trained.classes)} classes and the data has {len(classes)}; "
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


def open_splits(settings: TrainSettings) -> dict[str, ImageSet]:
    """The images to learn from and those to validate on."""
    size, task = (settings.size, settings.size), load_task(settings.task)
    counts = {"train": settings.train_count, "val": settings.val_count}
    quarantine = None if settings.quarantine is None else Path(settings.quarantine)
    splits = {
        split: open_data(
            settings.data,
            split,
            size=size,
            count=count,
            quarantine=quarantine,
            targets=task.targets,
            ignore=settings.ignore or None,
            reduce_zero_label=settings.reduce_zero_label,
            val_fraction=settings.val_fraction,
            follow=settings.follow,
            wording=task.wording(),
        )
        for split, count in counts.items()
    }
    classes = splits["train"].classes
    if len(classes) < 2 and task.one_class_remedy:
        found = f"'{settings.data}' has one class, {classes[0]!r}" if classes else "there is no class"
        raise InputError(f"{found}, so every answer would be right; {task.one_class_remedy}")
    if settings.balance_groups or settings.balance_classes:
        option = "--balance-groups" if settings.balance_groups else "--balance-classes:"
        groups = group_pictures(splits["train"], settings.balance_groups or (CLASS_COLUMN,), option)
        splits["train"] = Balanced(splits["train"], groups)
    return splits


def require_same_data(world: World, fingerprints: dict[str, str]) -> None:
    """Refuse to go on if machines have different files under the same path."""
    for rank, other in enumerate(world.gather(fingerprints)):
        for split, fingerprint in fingerprints.items():
            if other[split] != fingerprint:
                raise CollectiveInputError(
                    f"process {rank} has different data in split '{split}' from process {world.rank}; all need the same"
                )
