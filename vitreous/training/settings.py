"""Every setting of a training run: its name on the command line and in Python, its default, and what it means.

A setting is one field here; `train`'s signature, its help and `run.json` all follow from it.
"""

import math
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, asdict, dataclass, field, fields, replace
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
from vitreous.training.optim import Schedule

# Settings that may change when a run is resumed, because they do not change what it computes.
# A recipe is among them: what counts is the values it gave.
TERMS_OF_CLUSTERS = (
    *("cluster_overlap", "cluster_map_entropy", "cluster_place_entropy", "cluster_read_entropy", "cluster_faithful"),
)
AUTO_MODEL = "auto"  # as a model's name: whatever fits, see model_choice.py
FREE = frozenset(
    {
        *(
            "out",
            "recipe",
            "any_model",
            "print",
            "dry_run",
            "follow",
            "max_corrupt",
            "tensorboard",
            "wandb",
            "mlflow",
            "resume",
        ),
        *("quarantine", "val_fraction"),  # a change shows in the data's fingerprint
        *("workers", "device", "checkpoint_minutes", "checkpoint_steps", "grad_checkpointing", "shard"),
        *("rank_timeout", "worker_timeout"),
    }
)

# What is accepted -> the settings it applies to, and its test.
SETTING_LIMITS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "at least 1": (
        "size epochs batch_size accumulate repeats log_every train_count val_count local_size",
        lambda x: x >= 1,
    ),
    "0 or more": (
        "min_lr warmup_lr warmup_epochs cooldown_epochs lr_batch weight_decay weight_decay_end clip_grad mixup cutmix "
        "color_jitter pad "
        "cluster_overlap cluster_map_entropy cluster_place_entropy cluster_read_entropy cluster_faithful attend_weight "
        "workers seed patience checkpoint_steps local_crops teacher_warmup_epochs sharing_rounds contrast "
        "freeze_last knn_every",
        lambda x: x >= 0,
    ),
    "above 0": (
        "lr head_lr eps poly_power distill_temperature cluster_temperature checkpoint_minutes rank_timeout "
        "worker_timeout student_temperature",
        lambda x: x > 0,
    ),
    "between 0 and 1": (
        "max_corrupt mixup_switch erasing flip grey recolour distill_weight cluster_group_dropout attend_hide "
        "teacher_momentum centre_momentum",
        lambda x: 0 <= x <= 1,
    ),
    "at least 0 and below 1": ("ema label_smoothing drop_path cluster_dropout", lambda x: 0 <= x < 1),
    "above 0 and below 1": ("val_fraction", lambda x: 0 < x < 1),
    "above 0 and at most 1": ("scale crop_ratio layer_decay step_factor attend_share", lambda x: 0 < x <= 1),
}


@dataclass(frozen=True)
class TrainSettings:
    model: Annotated[
        str,
        Doc(
            "Model name, see `vitreous info`; any timm name or local-dir:FOLDER works too. Left out, so that the data "
            "come first: one that fits them, this machine and the public weights that can be had; it says why."
        ),
    ] = AUTO_MODEL
    data: Annotated[
        str, Doc("shapes, a folder with train/<class>/ and val/<class>/, or another layout of docs/data.md.")
    ] = ""
    _: KW_ONLY
    out: Annotated[Path | None, Doc("Run folder; default: runs/<model>-<data>.")] = None
    recipe: Annotated[
        str | None,
        Doc("Name of a recipe, see docs/train.md, or a YAML file of your own; options given here override it."),
    ] = None
    any_model: Annotated[bool, Doc("Use the recipe even if it was made for another family of models.")] = False
    print: Annotated[bool, Doc("Print the settings as a recipe that says where each comes from, and exit.")] = False
    dry_run: Annotated[
        bool,
        Doc(
            "Check everything, take a few steps, say what the run would take (memory, steps, time, disk, and on more "
            "processes), and leave nothing behind."
        ),
    ] = False
    task: Annotated[str, Doc(f"What to learn: {', '.join(load_tasks())}.")] = "classify"
    head: Annotated[
        str | None,
        Doc(
            "Head on the backbone. detect: fcos (default), retinanet, atss, fasterrcnn, maskrcnn, sparsercnn, "
            "ssd, ssdlite; segment: fpn (default), upernet, paca."
        ),
    ] = None
    head_args: Annotated[tuple[str, ...], Doc("Further arguments of the head, e.g. channels=128.")] = ()
    size: Annotated[
        int,
        Doc(
            "classify: height and width of the images in pixels; dino: of the two large crops; other tasks: size at "
            "which `shapes` are drawn."
        ),
    ] = 224
    short: Annotated[
        tuple[int, ...],
        Doc(
            "Shorter side of a picture in pixels; if several are given, a random one, and the largest for validation. "
            "Default: detect 800, segment 512, and --size for `shapes`."
        ),
    ] = ()
    longest: Annotated[
        int | None, Doc("Upper limit of the longer side in pixels; it takes precedence over --short.")
    ] = None
    crop: Annotated[
        tuple[int, ...],
        Doc("Height and width of the crop; detect: smallest and largest side of a random crop."),
    ] = ()
    rescale: Annotated[
        tuple[float, ...], Doc("Range of the random scale factor, e.g. 0.5 2.0; keypoints: one deviation, e.g. 0.3.")
    ] = ()
    rotation: Annotated[
        float, Doc("keypoints: standard deviation of the random rotation in degrees; at most twice that.")
    ] = 0.0
    epochs: Annotated[int, Doc("Passes over the training images.")] = 100
    batch_size: Annotated[
        int | Literal["auto"],
        Doc(
            "Images per optimiser step, over all processes and accumulated pieces; auto: the largest that fits the "
            "free memory of the device, a multiple of 8 up to 1024. A continued run keeps what it began with."
        ),
    ] = 64
    accumulate: Annotated[int, Doc("Pieces per batch (gradient accumulation), to save memory.")] = 1

    repeats: Annotated[
        int, Doc("Views of each image in a batch, which then has fewer images (repeated augmentation); 1 = off.")
    ] = 1

    balance_groups: Annotated[
        tuple[str, ...],
        Doc(
            "Draw every group of images equally often; groups are by columns of metadata.csv (of shapes with a planted "
            "shortcut: mark, agrees) or by class, and several columns combine."
        ),
    ] = ()

    balance_classes: Annotated[
        bool, Doc("Draw the images of every class equally often; the same as --balance-groups class.")
    ] = False
    class_weights: Annotated[
        tuple[str, ...],
        Doc(
            "What a mistake about a class costs: balanced (the rarer, the more), or some classes with their weight, as "
            "cat=2 dog=0.5; others have 1. The mean over the images is brought to 1."
        ),
    ] = ()
    patience: Annotated[
        int,
        Doc(
            "Stop early, after so many epochs in which the figure that decides about best/ has not risen on the "
            "validation images; 0 = never."
        ),
    ] = 0

    lr: Annotated[float, Doc("Peak learning rate.")] = 1e-3
    lr_batch: Annotated[
        int,
        Doc("Batch size that lr, warmup_lr and min_lr are meant for; they scale linearly with another. 0 = off."),
    ] = 0
    schedule: Annotated[Literal["cosine", "step", "poly"], Doc("How the learning rate decays.")] = "cosine"
    min_lr: Annotated[float, Doc("Final learning rate.")] = 1e-5
    warmup_epochs: Annotated[float, Doc("Epochs of linear warm-up; by default at most a tenth of a short run.")] = 5.0
    warmup_lr: Annotated[float, Doc("Learning rate at the start of the warm-up.")] = 0.0
    cooldown_epochs: Annotated[int, Doc("Additional epochs at min_lr at the end.")] = 0
    step_epochs: Annotated[
        tuple[float, ...], Doc("Schedule step: epochs after which the learning rate drops, e.g. 8 11.")
    ] = ()
    step_factor: Annotated[float, Doc("Schedule step: factor of each drop.")] = 0.1
    poly_power: Annotated[float, Doc("Schedule poly: exponent; 1 = linear.")] = 1.0
    betas: Annotated[tuple[float, float], Doc("AdamW's betas.")] = (0.9, 0.999)
    eps: Annotated[float, Doc("AdamW's epsilon.")] = 1e-8
    weight_decay: Annotated[float, Doc("AdamW's weight decay, of matrices and kernels only.")] = 0.05
    weight_decay_end: Annotated[
        float | None, Doc("Weight decay at the end of the run, reached along half a cosine; default: as at its start.")
    ] = None
    layer_decay: Annotated[float, Doc("Layer-wise learning-rate decay towards the input, e.g. 0.75; 1 = off.")] = 1.0
    head_lr: Annotated[float, Doc("Multiplier of the head's learning rate.")] = 1.0
    clip_grad: Annotated[float, Doc("Gradient clipping: largest norm; 0 = off.")] = 1.0
    ema: Annotated[float, Doc("Decay of the exponential moving average of the weights, e.g. 0.9998; 0 = off.")] = 0.0

    label_smoothing: Annotated[float, Doc("Label smoothing; 0 = off.")] = 0.1
    mixup: Annotated[float, Doc("Mixup's alpha, e.g. 0.8; 0 = off.")] = 0.0
    cutmix: Annotated[float, Doc("CutMix's alpha, e.g. 1.0; 0 = off.")] = 0.0
    mixup_switch: Annotated[float, Doc("Probability of CutMix when both are on.")] = 0.5
    augment: Annotated[str, Doc("RandAugment as timm writes it, e.g. rand-m9-mstd0.5-inc1; empty = off.")] = ""
    color_jitter: Annotated[float, Doc("Strength of random brightness, contrast and saturation; 0 = off.")] = 0.0
    erasing: Annotated[float, Doc("Probability of random erasing.")] = 0.0
    scale: Annotated[float, Doc("Smallest share of a picture's area in a random crop; 1 = whole pictures.")] = 0.35
    pad: Annotated[int, Doc("Pixels of padding before a random crop of the same size; needs --scale 1.")] = 0
    flip: Annotated[float, Doc("Probability of a horizontal flip.")] = 0.5

    crop_ratio: Annotated[float, Doc("Share of a validation picture's side kept by its centre crop.")] = 1.0

    drop_path: Annotated[float | None, Doc("Stochastic depth rate; default: the model's own.")] = None
    model_args: Annotated[
        tuple[str, ...], Doc("Further arguments of the model, e.g. clusters=(49,49,49,0) layer_scale=1e-5.")
    ] = ()
    pretrained: Annotated[
        bool, Doc("Start from published weights, or those of a folder; the classifier is new unless it fits.")
    ] = False

    weights: Annotated[
        str | None, Doc("Start from a file, URL, run or model folder; the classifier is new unless it fits.")
    ] = None

    local_crops: Annotated[int, Doc("dino: small crops of a picture, besides the two large ones of --size.")] = 8
    local_size: Annotated[int, Doc("dino: height and width of the small crops in pixels.")] = 96
    global_scale: Annotated[
        tuple[float, float], Doc("dino: smallest and largest share of a picture's area in a large crop.")
    ] = (0.4, 1.0)
    local_scale: Annotated[tuple[float, float], Doc("dino: the same of small crops.")] = (0.05, 0.4)
    student_temperature: Annotated[float, Doc("dino: softmax temperature of the student's answers.")] = 0.1
    teacher_temperature: Annotated[
        tuple[float, float], Doc("dino: softmax temperature of the teacher's answers, before and after its warm-up.")
    ] = (0.04, 0.07)
    teacher_warmup_epochs: Annotated[float, Doc("dino: epochs in which the teacher's temperature changes.")] = 30.0
    teacher_momentum: Annotated[
        float, Doc("dino: share of its weights that the teacher keeps in a step, at the start; it rises to 1.")
    ] = 0.996
    centre_momentum: Annotated[float, Doc("dino: share of the centre of the teacher's answers that a step keeps.")] = (
        0.9
    )
    sharing_rounds: Annotated[
        int,
        Doc(
            "dino: rounds (Sinkhorn-Knopp) that share the teacher's answers out evenly over the outputs, so that short "
            "runs cannot collapse; 0 = a centre alone, as DINO; DINOv2 takes 3."
        ),
    ] = 0
    grey: Annotated[float, Doc("dino: probability that a view has no colours.")] = 0.2
    recolour: Annotated[
        float,
        Doc(
            "dino: probability that red, green and blue of a view change places and its colours become weaker or "
            "stronger, up to twice. Against features that are nothing but colours."
        ),
    ] = 0.0
    contrast: Annotated[
        float,
        Doc(
            "dino: weight of a term by which views of one picture are told from those of the others in the batch, "
            "of this process, as SimCLR does; 0 = DINO alone."
        ),
    ] = 0.0
    freeze_last: Annotated[float, Doc("dino: epochs in which the head's last layer does not learn.")] = 1.0
    knn_every: Annotated[
        int,
        Doc(
            "classify and dino: epochs between measurements of k-nearest-neighbour accuracy in the features, where the "
            "data have labels; 0 = never."
        ),
    ] = 0

    teacher: Annotated[
        str | None, Doc("Teacher for distillation: a model name with weights, a run or model folder.")
    ] = None
    distill: Annotated[
        Literal["hard", "soft"], Doc("Learn the teacher's top-1 class (hard) or its probabilities (soft).")
    ] = "hard"
    distill_weight: Annotated[float, Doc("Weight of the distillation loss.")] = 0.5
    distill_temperature: Annotated[float, Doc("Softmax temperature of soft distillation.")] = 1.0

    attend_to: Annotated[
        Literal["masks"] | None,
        Doc(
            "Teach where to look: masks = on the object, where the data know its mask. Cheap for models with a readout "
            "through clusters; for other PaCas by their cluster maps; for others by the gradient of the loss, which "
            "makes a step dearer."
        ),
    ] = None
    attend_away: Annotated[
        str | None,
        Doc("Teach where not to look: a regions file, as the explorer writes it, or a place such as 'upper left'."),
    ] = None
    attend_weight: Annotated[float, Doc("Loss weight of the share of the decision that lies elsewhere.")] = 1.0
    attend_share: Annotated[float, Doc("Share of the object masks that is used, chosen by the pictures' names.")] = 1.0
    attend_hide: Annotated[
        float, Doc("Share of the pictures with a mask or region in which what lies elsewhere is another picture's.")
    ] = 0.9

    train_only: Annotated[
        Literal["all", "head"], Doc("head: all but the classifier, or the head, keeps the weights it starts with.")
    ] = "all"

    cluster_dropout: Annotated[
        float, Doc("PaCa: probability of dropping each cluster of an image, in all blocks that use it; 0 = off.")
    ] = 0.0
    cluster_group_dropout: Annotated[
        float, Doc("PaCa: probability of dropping a random cluster of an image and all with a similar map.")
    ] = 0.0
    cluster_overlap: Annotated[
        float, Doc("PaCa: loss weight of the overlap of cluster maps, which makes them differ; 0 = off.")
    ] = 0.0
    cluster_map_entropy: Annotated[
        float, Doc("PaCa: loss weight of the entropy of each map over positions, which makes maps compact; 0 = off.")
    ] = 0.0
    cluster_place_entropy: Annotated[
        float,
        Doc("PaCa: loss weight of the entropy of each position over clusters, which makes it choose one; 0 = off."),
    ] = 0.0
    cluster_read_entropy: Annotated[
        float,
        Doc(
            "PaCa with a readout: loss weight of how evenly the classifier reads clusters; it then reads few; 0 = off."
        ),
    ] = 0.0
    cluster_terms_on: Annotated[
        Literal["all", "readout"],
        Doc(
            "PaCa with a readout: whose clusters the settings above are about: those of all stages and the readout, or "
            "the readout's alone, so that a trunk with weights keeps its own."
        ),
    ] = "all"
    cluster_faithful: Annotated[
        float,
        Doc(
            "PaCa with a readout: loss weight of whether what its contributions put first keeps the class when shown "
            "alone and takes it away when hidden; a step takes three times as long; 0 = off."
        ),
    ] = 0.0
    cluster_temperature: Annotated[
        float | None, Doc("PaCa: softmax temperature of the cluster maps; default: the model's own, 1.")
    ] = None

    grad_checkpointing: Annotated[
        Literal["off", "blocks", "mlp"],
        Doc("Recompute activations in the backward pass to save memory: of whole blocks, or of their MLPs only."),
    ] = "off"
    compile: Annotated[bool, Doc("Compile the training step (torch.compile).")] = False
    amp: Annotated[
        Literal["off", "auto", "bf16", "fp16"],
        Doc("Mixed precision, for GPUs and, as bf16, for CPUs that multiply bfloat16; auto: bf16 where it is faster."),
    ] = "off"
    channels_last: Annotated[bool, Doc("Use the channels-last memory format.")] = False
    device: Annotated[str, Doc("cpu, cuda, cuda:1, mps; auto takes the best available.")] = "auto"
    shard: Annotated[
        bool, Doc("Shard the model across the processes of torchrun (FSDP); otherwise each has a copy.")
    ] = False
    rank_timeout: Annotated[
        float, Doc("Seconds after which processes of torchrun give up on one that does not respond.")
    ] = RANK_TIMEOUT_SECONDS
    workers: Annotated[int, Doc("Processes that load images; 0 = load in the main process.")] = 2
    worker_timeout: Annotated[float, Doc("Seconds without a new image after which a worker counts as hung.")] = (
        WORKER_TIMEOUT
    )
    seed: Annotated[int, Doc("Seed of all randomness: same seed, same run.")] = 0

    quarantine: Annotated[
        str | None,
        Doc("File that lists images to leave out; default: quarantine.txt in the data's folder, if it exists."),
    ] = None
    annotations: Annotated[
        tuple[str, ...],
        Doc("COCO files that annotate the pictures below DATA, e.g. train.json val.json."),
    ] = ()
    val_fraction: Annotated[
        float, Doc("Share of the images held out for validation where the data have no splits; chosen by content.")
    ] = VAL_FRACTION
    ignore: Annotated[tuple[int, ...], Doc("segment: mask values that stand for no class; default: 255.")] = ()
    reduce_zero_label: Annotated[bool, Doc("segment: mask value 0 stands for no class, and 1 for the first class.")] = (
        False
    )
    follow: Annotated[
        bool, Doc("Open pictures outside the data's folder if its own files name them (.. or an absolute path).")
    ] = False
    max_corrupt: Annotated[
        float,
        Doc("Largest share of unreadable images; each is replaced by the next, and above that training stops."),
    ] = 0.05
    train_count: Annotated[int | None, Doc("Number of training images of `shapes`.")] = None
    val_count: Annotated[int | None, Doc("Number of validation images of `shapes`.")] = None
    checkpoint_minutes: Annotated[float, Doc("Minutes between checkpoints; one is also written after every epoch.")] = (
        10.0
    )
    checkpoint_steps: Annotated[int, Doc("Optimiser steps between checkpoints; 0 = by time only.")] = 0
    log_every: Annotated[int, Doc("Optimiser steps between training entries in metrics.jsonl.")] = 50
    tensorboard: Annotated[
        bool, Doc("Also write the metrics for TensorBoard, to the folder tensorboard of the run.")
    ] = False
    wandb: Annotated[
        bool, Doc("Also send the metrics to Weights & Biases; WANDB_PROJECT and WANDB_MODE=offline are respected.")
    ] = False
    mlflow: Annotated[
        bool, Doc("Also send the metrics to MLflow: to the server or folder that MLFLOW_TRACKING_URI names.")
    ] = False
    resume: Annotated[bool, Doc("Resume the run in the folder; --no-resume refuses a folder that already has one.")] = (
        True
    )

    # Where each value came from, for `print`, and what to say before training; `recipe.py` fills in both.
    origins: dict[str, str] = field(init=False, default_factory=dict, compare=False, repr=False)
    notes: list[str] = field(init=False, default_factory=list, compare=False, repr=False)

    def __post_init__(self) -> None:
        # One word for data and annotations, which run.json keeps, too.
        object.__setattr__(self, "data", with_annotations(self.data, self.annotations))
        object.__setattr__(self, "annotations", ())
        if isinstance(self.out, str):  # convenient in Python; the command line gives a Path
            object.__setattr__(self, "out", Path(self.out))
        for accepted, (names, fine) in SETTING_LIMITS.items():
            for name in names.split():
                value = getattr(self, name)
                _check(name, value, value in (None, "auto") or fine(value), accepted)
        for name in ("size", "local_size"):
            _check(name, getattr(self, name), getattr(self, name) <= LARGEST_SIDE, f"at most {LARGEST_SIDE}")
        _check("teacher_temperature", self.teacher_temperature, min(self.teacher_temperature) > 0, "above 0")
        for name in ("min_lr", "warmup_lr"):
            _check(name, getattr(self, name), getattr(self, name) <= self.lr, f"at most lr ({self.lr})")
        grows = self.weight_decay_end is None or self.weight_decay > 0
        _check("weight_decay", self.weight_decay, grows, "above 0 where weight_decay_end is given")
        saving = self.grad_checkpointing in ("off", "blocks", "mlp")
        _check("grad_checkpointing", self.grad_checkpointing, saving, "off, blocks or mlp")
        _check("betas", self.betas, all(0 <= beta < 1 for beta in self.betas), "two numbers from 0 to below 1")
        rising = self.step_epochs == tuple(sorted(self.step_epochs)) and all(epoch > 0 for epoch in self.step_epochs)
        _check("step_epochs", self.step_epochs, rising, "numbers above 0, in rising order")
        needed = self.schedule != "step" or bool(self.step_epochs)
        _check("schedule", self.schedule, needed, "given together with step_epochs, e.g. --step-epochs 8 11")
        _check("pad", self.pad, not self.pad or self.scale == 1, f"0 unless scale is 1 (it is {self.scale})")
        accepted = "empty (off), or RandAugment as timm writes it, e.g. rand-m9-mstd0.5-inc1"
        _check("augment", repr(self.augment), not self.augment or RAND_AUGMENT.fullmatch(self.augment), accepted)
        twice = self.balance_classes and bool(self.balance_groups)
        _check("balance_classes", True, not twice, "left out with balance_groups, one of whose columns may be class")
        self._check_attention()
        self.model_arguments()  # reports an argument that cannot be read at once
        self.head_arguments()
        own, tasks = load_task(self.task).settings, load_tasks()
        for entry in fields(self):
            meant_for = [name for name, task in tasks.items() if entry.name in task.settings]
            unchanged = not meant_for or entry.name in own or getattr(self, entry.name) == entry.default
            accepted = f"left out: it is for --task {' or '.join(meant_for)}, and this is {self.task}"
            _check(entry.name, getattr(self, entry.name), unchanged, accepted)

    def _check_attention(self) -> None:
        guided = bool(self.attend_to or self.attend_away)
        _check("attend_to", self.attend_to, self.attend_to in (None, "masks"), "masks")
        for name in ("attend_weight", "attend_share", "attend_hide"):
            default = next(entry.default for entry in fields(self) if entry.name == name)
            unused = guided or getattr(self, name) == default
            _check(name, getattr(self, name), unused, "given together with attend_to or attend_away")
        _check("attend_share", self.attend_share, self.attend_share == 1 or self.attend_to, "given with attend_to")
        if guided:
            moves = "which masks and regions do not follow; leave one of the two out"
            _check("augment", repr(self.augment), not self.augment, f"empty: it turns and moves pictures, {moves}")
            for name in ("mixup", "cutmix"):
                _check(name, getattr(self, name), not getattr(self, name), f"0: it blends pictures, {moves}")
        _check("train_only", self.train_only, self.train_only in ("all", "head"), "all or head")
        _check(
            "train_only", self.train_only, self.train_only == "all" or not guided, "all: a head cannot look elsewhere"
        )
        terms = [name for name in TERMS_OF_CLUSTERS if self.train_only == "head" and getattr(self, name)]
        _check("train_only", self.train_only, not terms, f"all, or given without {' '.join(terms)}: clusters stay")
        starts = self.train_only == "all" or self.pretrained or self.weights is not None
        _check("train_only", self.train_only, starts, "given together with weights or pretrained, which it keeps")

    @property
    def folder(self) -> Path:
        files = find_coco_files(self.data)
        path = Path(self.data) if files is None else files.pictures[0]
        data = self.data if self.data.startswith("shapes") else path.resolve().name
        return self.out if self.out is not None else Path("runs") / re.sub(r"[^\w.]+", "-", f"{self.model}-{data}")

    def arguments(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        values = asdict(self) | {"out": str(self.folder), "peak_lr": self.peak_lr}
        del values["origins"], values["notes"], values["annotations"]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Of those settings that have one."""
        found = {entry.name: entry.default for entry in fields(cls) if entry.default is not MISSING}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}

    def model_arguments(self) -> dict[str, Any]:
        """`model_args` as Python values, with those that are fields here; `drop_path` under timm's name."""
        own = {"drop_path_rate": self.drop_path, "cluster_temperature": self.cluster_temperature}
        given = dict(parse_model_arg(text) for text in self.model_args)
        return {name: value for name, value in own.items() if value is not None} | given

    def head_arguments(self) -> dict[str, Any]:
        return dict(parse_model_arg(text, "head_args") for text in self.head_args)

    @property
    def peak_lr(self) -> float:
        """The peak learning rate at this batch size."""
        return self.lr * self.batch / self.lr_batch if self.lr_batch else self.lr

    @property
    def batch(self) -> int:
        """The batch size as a number, which `auto` has become before anything is trained."""
        assert isinstance(self.batch_size, int), "--batch-size auto has not been settled yet"
        return self.batch_size

    def settled(self, **values: Any) -> "TrainSettings":
        """The same settings with these values in the place of `auto`, wherever the others come from."""
        settled = replace(self, **values)
        settled.origins.update(self.origins)
        settled.notes.extend(self.notes)
        return settled

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

    def weight_decay_at(self, progress: float) -> float:
        """From `weight_decay` to `weight_decay_end` along half a cosine; `progress` runs from 0 to 1."""
        end = self.weight_decay if self.weight_decay_end is None else self.weight_decay_end
        return end + (self.weight_decay - end) * 0.5 * (1 + math.cos(math.pi * progress))

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
