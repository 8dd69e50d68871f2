"""Every setting of a training run: its name on the command line and in Python, its default, and what it means.

A setting is one field here; `train`'s signature, its help and `run.json` all follow from it.
"""

import re
from collections.abc import Callable
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from typing_extensions import Doc

from vitreous.data.layouts.coco_anywhere import find_coco_files, with_annotations
from vitreous.data.layouts.held_out import VAL_FRACTION
from vitreous.data.loader import WORKER_TIMEOUT
from vitreous.data.mixup import Mixup
from vitreous.data.transforms import LARGEST_SIDE, RAND_AUGMENT, Augmentation, Preprocess
from vitreous.errors import InputError
from vitreous.models.arguments import parse_model_arg
from vitreous.runtime.distributed import RANK_TIMEOUT_SECONDS
from vitreous.tasks.base import load_task, load_tasks
from vitreous.training.schedule import Schedule

# They may change between the starts of one run, because they do not change what it computes.
# A recipe is among them: what counts is the values it gave.
FREE = frozenset(
    {
        "out",
        "recipe",
        "any_model",
        "print",
        "quarantine",
        "follow",
        "val_fraction",  # as with the list of images to leave out, the data's fingerprint tells
        "max_corrupt",
        "workers",
        "device",
        "checkpoint_minutes",
        "checkpoint_steps",
        "grad_checkpointing",
        "shard",
        "rank_timeout",
        "worker_timeout",
        "tensorboard",
        "resume",
    }
)


# What is accepted -> the settings it holds for, and its test.
LIMITS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "at least 1": ("size epochs batch_size accumulate repeats log_every train_count val_count", lambda x: x >= 1),
    "0 or more": (
        "min_lr warmup_lr warmup_epochs cooldown_epochs lr_batch weight_decay clip_grad mixup cutmix color_jitter pad "
        "cluster_overlap cluster_map_entropy cluster_place_entropy workers seed checkpoint_steps",
        lambda x: x >= 0,
    ),
    "above 0": (
        "lr head_lr eps poly_power distill_temperature cluster_temperature checkpoint_minutes rank_timeout "
        "worker_timeout",
        lambda x: x > 0,
    ),
    "between 0 and 1": (
        "max_corrupt mixup_switch erasing flip distill_weight cluster_group_dropout",
        lambda x: 0 <= x <= 1,
    ),
    "at least 0 and below 1": ("ema label_smoothing drop_path cluster_dropout", lambda x: 0 <= x < 1),
    "above 0 and below 1": ("val_fraction", lambda x: 0 < x < 1),
    "above 0 and at most 1": ("scale crop_ratio layer_decay step_factor", lambda x: 0 < x <= 1),
}


@dataclass(frozen=True)
class TrainSettings:
    model: Annotated[str, Doc("Model name, see `vitreous info`; any timm name and local-dir:FOLDER work too.")]
    data: Annotated[str, Doc("shapes, a folder with train/<class>/ and val/<class>/, or as docs/data.md says.")]
    _: KW_ONLY
    out: Annotated[Path | None, Doc("Run folder; default: runs/<model>-<data>.")] = None
    recipe: Annotated[
        str | None, Doc("Settings by name, see docs/train.md, or a YAML file of your own; options given here win.")
    ] = None
    any_model: Annotated[bool, Doc("Use the recipe though it was made for another family of models.")] = False
    print: Annotated[bool, Doc("Show the settings, as a recipe that says where each comes from, and end.")] = False
    task: Annotated[str, Doc(f"What to learn: {', '.join(load_tasks())}.")] = "classify"
    head: Annotated[
        str | None,
        Doc(
            "What stands on the backbone. detect: fcos (default), retinanet, atss, fasterrcnn, maskrcnn, sparsercnn, "
            "ssd, ssdlite; segment: fpn (default), upernet, paca."
        ),
    ] = None
    head_args: Annotated[tuple[str, ...], Doc("More arguments of the head, e.g. channels=128.")] = ()
    size: Annotated[
        int, Doc("Height and width of the images in pixels; of the other tasks, at which `shapes` are drawn.")
    ] = 224
    short: Annotated[
        tuple[int, ...],
        Doc(
            "Length of a picture's shorter side in pixels, of several a random one; the largest for validation. "
            "Default: detect 800, segment 512, and --size for `shapes`."
        ),
    ] = ()
    longest: Annotated[int | None, Doc("Most pixels of its longer side, which then decides.")] = None
    crop: Annotated[
        tuple[int, ...],
        Doc("Height and width of what is cut out; detect: from this many to that many pixels, at random."),
    ] = ()
    rescale: Annotated[
        tuple[float, ...], Doc("Random factor on the scale, from this to that: 0.5 2.0; keypoints: one share, 0.3.")
    ] = ()
    rotation: Annotated[float, Doc("Keypoints: largest random rotation in degrees.")] = 0.0
    epochs: Annotated[int, Doc("Passes over the training images.")] = 100
    batch_size: Annotated[int, Doc("Images per optimiser step, all pieces and processes together.")] = 64
    accumulate: Annotated[int, Doc("Pieces into which a batch is cut to save memory.")] = 1

    repeats: Annotated[
        int, Doc("Views of each image in a batch, of so many fewer images (repeated augmentation); 1 = off.")
    ] = 1

    lr: Annotated[float, Doc("Highest learning rate.")] = 1e-3
    lr_batch: Annotated[
        int,
        Doc("Batch size that lr, warmup_lr and min_lr are meant for; with another they change in proportion. 0 = any."),
    ] = 0
    schedule: Annotated[Literal["cosine", "step", "poly"], Doc("How the learning rate falls.")] = "cosine"
    min_lr: Annotated[float, Doc("Learning rate at the end.")] = 1e-5
    warmup_epochs: Annotated[
        float, Doc("Epochs over which the learning rate rises; if not given, at most a tenth of a short run.")
    ] = 5.0
    warmup_lr: Annotated[float, Doc("Learning rate from which it rises.")] = 0.0
    cooldown_epochs: Annotated[int, Doc("Further epochs at the end, at min_lr.")] = 0
    step_epochs: Annotated[
        tuple[float, ...], Doc("For the schedule step: after which epochs it falls, e.g. 8 11.")
    ] = ()
    step_factor: Annotated[float, Doc("For the schedule step: by what it is multiplied then.")] = 0.1
    poly_power: Annotated[float, Doc("For the schedule poly: power of the share of steps left; 1 = a line.")] = 1.0
    betas: Annotated[tuple[float, float], Doc("AdamW's memory of gradients and of their squares.")] = (0.9, 0.999)
    eps: Annotated[float, Doc("AdamW's guard against division by zero.")] = 1e-8
    weight_decay: Annotated[float, Doc("AdamW's decay of matrices and kernels.")] = 0.05
    layer_decay: Annotated[
        float, Doc("Factor on the learning rate from each layer to the one before, e.g. 0.75; 1 = off.")
    ] = 1.0
    head_lr: Annotated[float, Doc("Factor on the learning rate of the head.")] = 1.0
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
    pad: Annotated[int, Doc("Pixels added around whole pictures before cropping them again; needs --scale 1.")] = 0
    flip: Annotated[float, Doc("How often a picture is mirrored.")] = 0.5

    crop_ratio: Annotated[float, Doc("Share of a validation picture's side that its centre crop keeps.")] = 1.0

    drop_path: Annotated[float | None, Doc("Stochastic depth; default: the model's own.")] = None
    model_args: Annotated[
        tuple[str, ...], Doc("More arguments of the model, e.g. clusters=(49,49,49,0) layer_scale=1e-5.")
    ] = ()
    pretrained: Annotated[
        bool, Doc("Start from published weights, or a folder's; the classifier is new unless it fits.")
    ] = False

    weights: Annotated[
        str | None, Doc("Start from this file, URL, run or model folder instead; the classifier is new unless it fits.")
    ] = None

    teacher: Annotated[str | None, Doc("Model to learn from as well: a name with weights, a run or model folder.")] = (
        None
    )
    distill: Annotated[Literal["hard", "soft"], Doc("Learn the teacher's decision, or its probabilities.")] = "hard"
    distill_weight: Annotated[float, Doc("Share of the teacher in the loss.")] = 0.5
    distill_temperature: Annotated[float, Doc("How far soft distillation evens out the probabilities.")] = 1.0

    cluster_dropout: Annotated[
        float, Doc("PaCa: how often each cluster is removed from an image, in all blocks that use it; 0 = never.")
    ] = 0.0
    cluster_group_dropout: Annotated[
        float, Doc("PaCa: how often a random cluster is removed from an image with all whose maps are alike.")
    ] = 0.0
    cluster_overlap: Annotated[
        float, Doc("PaCa: weight in the loss of the overlap of cluster maps, which makes them differ; 0 = off.")
    ] = 0.0
    cluster_map_entropy: Annotated[
        float, Doc("PaCa: weight of the entropy of each map over the places, which makes maps small; 0 = off.")
    ] = 0.0
    cluster_place_entropy: Annotated[
        float, Doc("PaCa: weight of the entropy of each place over the maps, which gives it one cluster; 0 = off.")
    ] = 0.0
    cluster_temperature: Annotated[
        float | None, Doc("PaCa: temperature of the softmax that makes the maps; default: the model's own, 1.")
    ] = None

    grad_checkpointing: Annotated[
        Literal["off", "blocks", "mlp"],
        Doc("Compute again in the backward pass to save memory: whole blocks, or their feed-forward layers alone."),
    ] = "off"
    compile: Annotated[bool, Doc("Compile the training step (torch.compile).")] = False
    amp: Annotated[Literal["off", "bf16", "fp16"], Doc("Mixed precision; made for GPUs, slower on most CPUs.")] = "off"
    channels_last: Annotated[bool, Doc("Keep images and kernels channels-last in memory.")] = False
    device: Annotated[str, Doc("cpu, cuda, cuda:1, mps; auto takes the best there is.")] = "auto"
    shard: Annotated[bool, Doc("Split the model among the processes of torchrun; otherwise each has a copy.")] = False
    rank_timeout: Annotated[
        float, Doc("Seconds after which processes of torchrun give up on one that does not answer.")
    ] = RANK_TIMEOUT_SECONDS
    workers: Annotated[int, Doc("Processes that prepare images; 0 = the main one does it.")] = 2
    worker_timeout: Annotated[float, Doc("Seconds without a new image after which they count as hung.")] = (
        WORKER_TIMEOUT
    )
    seed: Annotated[int, Doc("Source of all randomness: same seed, same run.")] = 0

    quarantine: Annotated[
        str | None, Doc("List of images to leave out; default: quarantine.txt in the data's folder, if there is one.")
    ] = None
    annotations: Annotated[
        tuple[str, ...],
        Doc("COCO files of the pictures below DATA, e.g. train.json val.json; or DATA as docs/data.md."),
    ] = ()
    val_fraction: Annotated[
        float, Doc("Share of the images held out for validation, by content, where the data have no splits.")
    ] = VAL_FRACTION
    ignore: Annotated[tuple[int, ...], Doc("Values of label pictures that stand for no class; default: 255.")] = ()
    reduce_zero_label: Annotated[bool, Doc("In label pictures 0 stands for no class, and 1 for the first.")] = False
    follow: Annotated[
        bool, Doc("Open pictures that the data's own files name outside of the data's folder (.. or an absolute path).")
    ] = False
    max_corrupt: Annotated[
        float,
        Doc("Share of the images that may be unreadable before training stops; the next image takes their place."),
    ] = 0.05
    train_count: Annotated[int | None, Doc("How many training images of `shapes` to draw.")] = None
    val_count: Annotated[int | None, Doc("How many validation images of `shapes` to draw.")] = None
    checkpoint_minutes: Annotated[float, Doc("Time between checkpoints; one is written after every epoch anyway.")] = (
        10.0
    )
    checkpoint_steps: Annotated[int, Doc("Optimiser steps between checkpoints; 0 = go by the time alone.")] = 0
    log_every: Annotated[int, Doc("Optimiser steps between training lines in metrics.jsonl.")] = 50
    tensorboard: Annotated[bool, Doc("Write the metrics for TensorBoard too, to the folder tensorboard of --out.")] = (
        False
    )
    resume: Annotated[bool, Doc("Continue the run in the folder; --no-resume refuses a folder that has one.")] = True

    # Where each value came from, for `print`, and what to say before training; both filled in by `recipe.py`.
    origins: dict[str, str] = field(init=False, default_factory=dict, compare=False, repr=False)
    notes: list[str] = field(init=False, default_factory=list, compare=False, repr=False)

    def __post_init__(self) -> None:
        # In one word, which is also what run.json keeps.
        object.__setattr__(self, "data", with_annotations(self.data, self.annotations))
        object.__setattr__(self, "annotations", ())
        if isinstance(self.out, str):  # convenient in Python; the command line gives a Path
            object.__setattr__(self, "out", Path(self.out))
        for accepted, (names, fine) in LIMITS.items():
            for name in names.split():
                value = getattr(self, name)
                _check(name, value, value is None or fine(value), accepted)
        _check("size", self.size, self.size <= LARGEST_SIDE, f"at most {LARGEST_SIDE}")
        for name in ("min_lr", "warmup_lr"):
            _check(name, getattr(self, name), getattr(self, name) <= self.lr, f"at most lr ({self.lr})")
        saving = ("off", "blocks", "mlp")
        _check("grad_checkpointing", self.grad_checkpointing, self.grad_checkpointing in saving, "off, blocks or mlp")
        _check("betas", self.betas, all(0 <= beta < 1 for beta in self.betas), "two numbers from 0 to below 1")
        rising = self.step_epochs == tuple(sorted(self.step_epochs)) and all(epoch > 0 for epoch in self.step_epochs)
        _check("step_epochs", self.step_epochs, rising, "numbers above 0, in rising order")
        needed = self.schedule != "step" or bool(self.step_epochs)
        _check("schedule", self.schedule, needed, "given together with step_epochs, e.g. --step-epochs 8 11")
        _check("pad", self.pad, not self.pad or self.scale == 1, f"0 unless scale is 1 (it is {self.scale})")
        accepted = "empty (off), or RandAugment as timm writes it, e.g. rand-m9-mstd0.5-inc1"
        _check("augment", repr(self.augment), not self.augment or RAND_AUGMENT.fullmatch(self.augment), accepted)
        self.model_arguments()  # an argument that cannot be read is reported at once
        self.head_arguments()
        own, tasks = load_task(self.task).settings, load_tasks()
        for entry in fields(self):
            meant_for = [name for name, task in tasks.items() if entry.name in task.settings]
            unchanged = not meant_for or entry.name in own or getattr(self, entry.name) == entry.default
            accepted = f"left out: it is for the task {' or '.join(meant_for)}, and this is {self.task}"
            _check(entry.name, getattr(self, entry.name), unchanged, accepted)

    @property
    def folder(self) -> Path:
        files = find_coco_files(self.data)
        path = Path(self.data) if files is None else files.pictures[0]
        data = self.data if self.data.startswith("shapes") else path.resolve().name
        return self.out if self.out is not None else Path("runs") / re.sub(r"[^\w.]+", "-", f"{self.model}-{data}")

    def arguments(self) -> dict[str, Any]:
        """Everything as JSON can hold it."""
        values = asdict(self) | {"out": str(self.folder), "peak_lr": self.peak_lr}
        del values["origins"], values["notes"], values["annotations"]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def model_arguments(self) -> dict[str, Any]:
        """`model_args` as Python values, and what are settings of their own, `drop_path` under timm's name."""
        own = {"drop_path_rate": self.drop_path, "cluster_temperature": self.cluster_temperature}
        given = dict(parse_model_arg(text) for text in self.model_args)
        return {name: value for name, value in own.items() if value is not None} | given

    def head_arguments(self) -> dict[str, Any]:
        return dict(parse_model_arg(text, "head_args") for text in self.head_args)

    @property
    def peak_lr(self) -> float:
        """The highest learning rate, at this batch size."""
        return self.lr * self.batch_size / self.lr_batch if self.lr_batch else self.lr

    @property
    def all_epochs(self) -> int:
        return self.epochs + self.cooldown_epochs

    def lr_schedule(self, steps_per_epoch: int) -> Schedule:
        """Factors on `peak_lr`."""
        return Schedule(
            self.schedule,
            steps=self.epochs * steps_per_epoch,
            warmup=round(self.warmup_epochs * steps_per_epoch),
            start=self.warmup_lr / self.lr,
            floor=self.min_lr / self.lr,
            milestones=tuple(round(epoch * steps_per_epoch) for epoch in self.step_epochs),
            factor=self.step_factor,
            power=self.poly_power,
        )

    def augmentation(self, preprocess: Preprocess) -> Augmentation:
        return Augmentation(
            preprocess,
            scale=self.scale,
            pad=self.pad,
            flip=self.flip,
            policy=self.augment,
            color_jitter=self.color_jitter,
            erasing=self.erasing,
        )

    def mixing(self) -> Mixup:
        return Mixup(self.mixup, self.cutmix, self.mixup_switch)


def _check(name: str, given: Any, fine: Any, accepted: str) -> None:
    if not fine:
        raise InputError(f"{name} {given} cannot be used; it must be {accepted}")
