"""Every setting of a training run: its name on the command line and in Python, its default, and what it means.

A setting is one field here; `train`'s signature, its help and `run.json` all follow from it.
"""

import ast
import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_type_hints

from typing_extensions import Doc

from vitreous.data.mixup import Mixup
from vitreous.data.transforms import Augmentation, Preprocess
from vitreous.errors import InputError

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")

# They may change between the starts of one run, because they do not change what it computes.
FREE = frozenset({"out", "workers", "device", "checkpoint_minutes", "checkpoint_steps", "resume"})


@dataclass(frozen=True)
class TrainSettings:
    model: Annotated[str, Doc("Model name, see `vitreous info`; any timm name and local-dir:FOLDER work too.")]
    data: Annotated[str, Doc("shapes, shapes:medium, shapes:hard, or a folder with train/<class>/ and val/<class>/.")]
    _: KW_ONLY
    out: Annotated[Path | None, Doc("Run folder; default: runs/<model>-<data>.")] = None
    task: Annotated[Literal["classify"], Doc("What to learn.")] = "classify"
    size: Annotated[int, Doc("Height and width of the training images in pixels.")] = 224
    epochs: Annotated[int, Doc("Passes over the training images.")] = 100
    batch_size: Annotated[int, Doc("Images per optimiser step, all pieces and processes together.")] = 64
    accumulate: Annotated[int, Doc("Pieces into which a batch is cut to save memory.")] = 1

    lr: Annotated[float, Doc("Highest learning rate.")] = 1e-3
    min_lr: Annotated[float, Doc("Learning rate at the end.")] = 1e-5
    warmup_epochs: Annotated[float, Doc("Epochs over which the learning rate rises.")] = 5.0
    weight_decay: Annotated[float, Doc("AdamW's decay of matrices and kernels.")] = 0.05
    clip_grad: Annotated[float, Doc("Largest norm of the gradient; 0 = no limit.")] = 1.0
    ema: Annotated[float, Doc("Decay of the running average of the weights, e.g. 0.9998; 0 = off.")] = 0.0

    label_smoothing: Annotated[float, Doc("Share of the target spread over all classes.")] = 0.1
    mixup: Annotated[float, Doc("Mixup's alpha, e.g. 0.8; 0 = off.")] = 0.0
    cutmix: Annotated[float, Doc("CutMix's alpha, e.g. 1.0; 0 = off.")] = 0.0
    mixup_switch: Annotated[float, Doc("How often CutMix is taken when both are on.")] = 0.5
    augment: Annotated[str, Doc("RandAugment as timm writes it, e.g. rand-m9-mstd0.5-inc1; empty = off.")] = ""
    color_jitter: Annotated[float, Doc("Strength of random brightness, contrast and saturation; 0 = off.")] = 0.0
    erasing: Annotated[float, Doc("How often a random rectangle is erased.")] = 0.0
    scale: Annotated[float, Doc("Smallest share of a picture's area a random crop takes; 1 = whole pictures.")] = 0.35
    flip: Annotated[float, Doc("How often a picture is mirrored.")] = 0.5

    crop_ratio: Annotated[float, Doc("Share of a validation picture's side that its centre crop keeps.")] = 1.0

    drop_path: Annotated[float | None, Doc("Stochastic depth; default: the model's own.")] = None
    model_args: Annotated[
        tuple[str, ...], Doc("More arguments of the model, e.g. clusters=(49,49,49,0) layer_scale=1e-5.")
    ] = ()
    pretrained: Annotated[bool, Doc("Start from published weights; the classifier is new.")] = False

    amp: Annotated[Literal["off", "bf16", "fp16"], Doc("Mixed precision; made for GPUs, slower on most CPUs.")] = "off"
    channels_last: Annotated[bool, Doc("Keep images and kernels channels-last in memory.")] = False
    device: Annotated[str, Doc("cpu, cuda, cuda:1, mps; auto takes the best there is.")] = "auto"
    workers: Annotated[int, Doc("Processes that prepare images; 0 = the main one does it.")] = 2
    seed: Annotated[int, Doc("Source of all randomness: same seed, same run.")] = 0

    train_count: Annotated[int | None, Doc("How many training images of `shapes` to draw.")] = None
    val_count: Annotated[int | None, Doc("How many validation images of `shapes` to draw.")] = None
    checkpoint_minutes: Annotated[float, Doc("Time between checkpoints; one is written after every epoch anyway.")] = (
        10.0
    )
    checkpoint_steps: Annotated[int, Doc("Optimiser steps between checkpoints; 0 = go by the time alone.")] = 0
    log_every: Annotated[int, Doc("Optimiser steps between training lines in metrics.jsonl.")] = 50
    resume: Annotated[bool, Doc("Continue the run in the folder; --no-resume refuses a folder that has one.")] = True

    def __post_init__(self) -> None:
        if isinstance(self.out, str):  # convenient in Python; the command line gives a Path
            object.__setattr__(self, "out", Path(self.out))
        for name in ("size", "epochs", "batch_size", "accumulate", "log_every"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        _check("lr", self.lr, self.lr > 0, "above 0")
        for name in ("min_lr", "warmup_epochs", "weight_decay", "clip_grad", "workers", "seed", "checkpoint_steps"):
            _check(name, getattr(self, name), getattr(self, name) >= 0, "0 or more")
        _check("min_lr", self.min_lr, self.min_lr <= self.lr, f"at most lr ({self.lr})")
        _check("ema", self.ema, 0 <= self.ema < 1, "0 (off) or between 0 and 1")
        _check("checkpoint_minutes", self.checkpoint_minutes, self.checkpoint_minutes > 0, "above 0")
        if self.drop_path is not None:
            _check("drop_path", self.drop_path, 0 <= self.drop_path < 1, "between 0 and 1")

    @property
    def folder(self) -> Path:
        data = self.data if self.data.startswith("shapes") else Path(self.data).resolve().name
        return self.out if self.out is not None else Path("runs") / re.sub(r"[:/\\]+", "-", f"{self.model}-{data}")

    def arguments(self) -> dict[str, Any]:
        """Everything as JSON can hold it."""
        return asdict(self) | {"out": str(self.folder), "model_args": list(self.model_args)}

    def model_arguments(self) -> dict[str, Any]:
        """`model_args` as Python values, and `drop_path` under timm's name."""
        given = dict(parse_model_arg(text) for text in self.model_args)
        return given if self.drop_path is None else {"drop_path_rate": self.drop_path} | given

    def augmentation(self, preprocess: Preprocess) -> Augmentation:
        return Augmentation(
            preprocess,
            scale=self.scale,
            flip=self.flip,
            policy=self.augment,
            color_jitter=self.color_jitter,
            erasing=self.erasing,
        )

    def mixing(self) -> Mixup:
        return Mixup(self.mixup, self.cutmix, self.mixup_switch)


def parse_model_arg(text: str) -> tuple[str, Any]:
    """`clusters=(49,49,49,0)` to a name and a Python value; what is no literal is a string."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InputError(f"model argument '{text}' cannot be read; write name=value, e.g. clusters=(49,49,49,0)")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def takes(settings: Callable[P, S]) -> Callable[[Callable[[S], R]], Callable[P, R]]:
    """Let a function of one settings object be called with the settings themselves: `train("paca_b0", "shapes")`.

    Signature, type checks and help are those of the settings class.
    """

    def decorate(function: Callable[[S], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def verb(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(settings(*args, **kwargs))

        hints = get_type_hints(settings)
        fields = inspect.signature(settings).parameters.values()
        parameters = [field.replace(annotation=hints[field.name]) for field in fields]
        returned = get_type_hints(function)["return"]
        verb.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
        verb.__annotations__ = {field.name: field.annotation for field in parameters} | {"return": returned}
        verb.__doc__ = f"{inspect.getdoc(function)}\n\nArgs:\n{_documented(settings)}"
        return verb

    return decorate


def _documented(settings: Any) -> str:
    hints = get_type_hints(settings, include_extras=True)
    return "\n".join(
        f"    {name}: {hints[name].__metadata__[0].documentation}" for name in inspect.signature(settings).parameters
    )


def _check(name: str, given: Any, fine: bool, accepted: str) -> None:
    if not fine:
        raise InputError(f"{name} {given} cannot be used; it must be {accepted}")
