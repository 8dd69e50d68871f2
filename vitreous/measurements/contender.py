"""One model in one setting: what is run, what it is given, and what that costs in multiply-adds and memory.

Weights of models that are given by name are fresh: neither time nor memory depends on them. Only what a detector does
with boxes it is sure of does, and a fresh one is sure of none.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import torch
from timm import get_pretrained_cfg
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from vitreous.errors import InputError
from vitreous.exports.folder import is_exported
from vitreous.exports.model import ExportedModel
from vitreous.figures.counting import Figures, count_model
from vitreous.files.reading import reason_of
from vitreous.heads.boxes import Detector
from vitreous.heads.keypoints import HEATMAP_STRIDE, SimpleBaseline
from vitreous.heads.segment import Segmenter
from vitreous.heads.two_stage import RCNN
from vitreous.measurements.memory import PassMemory, pass_memory
from vitreous.models.base import Backbone
from vitreous.registry import create_model, resolve_name
from vitreous.runs.model_folder import find_model_folder, load_model
from vitreous.runs.trained_model import number_names, refusal_of_size
from vitreous.tasks.base import Targets, Task, TaskWithHead, load_task
from vitreous.training.optim import build_optimizer

StepKind = Literal["infer", "train"]
Recomputed = Literal["off", "blocks", "mlp"]
STEP_NAMES = {"infer": "inference", "train": "training step"}
TRAINING_WORK = 3  # a backward pass takes about twice the multiply-adds of a forward pass
CLASS_NUMBERS = {"boxes": 80, "semantic": 150, "keypoints": 1}  # those of COCO and ADE20K
JOINTS, IMAGENET_CLASSES = 17, 1000
OBJECTS = 8  # in an image that a detector learns from
TRAINED_REGIONS, TRAINED_MASKS = 512, 128  # of an image; the most that a two-stage detector samples in training


class Setting(NamedTuple):
    step: StepKind
    size: tuple[int, int]  # height, width
    batch: int

    @property
    def pixels(self) -> int:
        """Of one image."""
        return self.size[0] * self.size[1]

    def __str__(self) -> str:
        return f"{STEP_NAMES[self.step]}, {self.size[0]}x{self.size[1]}, batch {self.batch}"


@dataclass(frozen=True)
class Source:
    """A model by name, which can be built for any size, or of a run folder or model folder, with its own task."""

    label: str
    task: Task
    device: torch.device
    recompute: Recomputed = "off"
    trained: nn.Module | None = None

    @property
    def exported(self) -> bool:
        """Whether it is a graph, which another program runs and nobody can look into."""
        return isinstance(self.trained, ExportedModel)

    @property
    def fixed(self) -> bool:
        """Whether timm builds it for one image size."""
        config = None if self.trained is not None else get_pretrained_cfg(resolve_name(self.label))
        return config is not None and bool(config.fixed_input_size)

    def build(self, size: tuple[int, int]) -> nn.Module:
        arguments: dict[str, Any] = {"img_size": size} if self.fixed else {}
        model = self.trained if self.trained is not None else self._fresh(arguments)
        if self.recompute != "off":
            self._recompute(model)
        return model.to(self.device)

    def _fresh(self, arguments: dict[str, Any]) -> nn.Module:
        torch.manual_seed(0)
        if not self.task.on_feature_maps:
            config = get_pretrained_cfg(resolve_name(self.label))
            if config is not None and config.num_classes > IMAGENET_CLASSES:  # of a larger data set
                arguments["num_classes"] = IMAGENET_CLASSES
            return create_model(self.label, **arguments)
        try:
            backbone = create_model(self.label, features_only=True, **arguments)
        except (TypeError, AttributeError, RuntimeError) as reason:  # this is how timm's say that they give no maps
            raise InputError(
                f"model '{self.label}' cannot be a backbone for --task {self.task.name} ({reason_of(reason)}); give "
                "one that gives feature maps"
            ) from reason
        return self.task.model(backbone)

    def _recompute(self, model: nn.Module) -> None:
        trunk: Any = next((part for part in model.modules() if hasattr(part, "set_grad_checkpointing")), None)
        part = {} if self.recompute == "blocks" else {"part": self.recompute}
        try:
            trunk.set_grad_checkpointing(True, **part)
        except (AssertionError, AttributeError, TypeError) as reason:  # timm's models have no parts to choose
            raise InputError(
                f"model '{self.label}' cannot compute its {self.recompute} twice; leave out --grad-checkpointing, or "
                "give it blocks"
            ) from reason


def open_source(
    given: str, task: str, head: str | None, head_args: Mapping[str, Any], device: torch.device, recompute: Recomputed
) -> Source:
    """What is known about a model before it is built; a wrong name is refused at once."""
    folder = find_model_folder(given)
    if folder is None:
        resolve_name(given)
        return Source(given, fresh_task(task, head, head_args), device, recompute)
    if is_exported(folder) and (device.type != "cpu" or recompute != "off"):
        raise InputError(
            f"'{given}' is an exported model, which is measured as it is and on the CPU: give --device cpu and no "
            "--grad-checkpointing"
        )
    trained = load_model(given, device=str(device))
    if (task != "classify" and task != trained.task) or head is not None or head_args:
        raise InputError(
            f"'{given}' has its own task, {trained.task}, and its own head; leave out --task, --head and --head-args, "
            "or give the name of a model"
        )
    return Source(given, trained.build_task(), device, recompute, trained.model)


def fresh_task(name: str, head: str | None, head_args: Mapping[str, Any]) -> Task:
    """A task for as many classes as its best-known data have."""
    kind = load_task(name)
    classes = number_names(CLASS_NUMBERS.get(kind.targets, IMAGENET_CLASSES))
    if not issubclass(kind, TaskWithHead):
        if head is not None or head_args:
            raise InputError(
                f"--head {head or '…'} given, but the task {name} has no heads to choose from; leave it out"
            )
        return kind(classes)
    options: dict[str, Any] = {"head": head, "head_args": head_args}
    return kind(classes, **options | ({"names": number_names(JOINTS)} if kind.targets == "keypoints" else {}))


@dataclass(frozen=True)
class Contender:
    """All that a runner needs to run a model in a setting."""

    label: str
    model: nn.Module
    task: Task
    setting: Setting
    device: torch.device

    def images(self) -> Tensor:
        return torch.randn(self.setting.batch, 3, *self.setting.size, device=self.device)

    @property
    def classes(self) -> int:
        return int(getattr(self.model, "num_classes", 0) or len(self.task.classes))

    def targets(self) -> Targets:
        """Something to learn, of the kind that the task learns from."""
        batch, (height, width) = self.setting.batch, self.setting.size
        kind, device = self.task.targets, self.device
        if kind == "labels":
            return {"labels": torch.randint(self.classes, (batch,), device=device)}
        if isinstance(self.model, Segmenter):
            return {"semantic": torch.randint(self.classes, (batch, height, width), device=device)}
        if isinstance(self.model, SimpleBaseline):
            grid = -(-height // HEATMAP_STRIDE), -(-width // HEATMAP_STRIDE)
            joints = self.model.heatmaps.out_channels
            return {
                "heatmaps": torch.rand(batch, joints, *grid, device=device),
                "weights": torch.ones(batch, joints, device=device),
            }
        if isinstance(self.model, Detector):
            return box_targets(batch, height, width, self.classes, self.device)
        raise InputError(
            f"--step train given, but what the task {self.task.name} learns from ({kind}) cannot be made up; measure "
            "--step infer"
        )

    def run(self, model: Callable[..., Any]) -> Callable[[], object]:
        """The step of the setting with this form of the model, on the same images every time."""
        images = self.images()
        self.model.train(self.setting.step == "train")
        if self.setting.step == "infer":

            def infer() -> object:
                with torch.inference_mode():
                    return model(images)

            return infer
        targets = self.targets()
        optimizer = build_optimizer(self.model, lr=0.0, weight_decay=0.05)  # all its work, and the weights stay

        def learn() -> None:
            optimizer.zero_grad(set_to_none=True)
            losses = self.task.losses(cast(nn.Module, model), images, targets)
            torch.stack([term.sum() for term in losses.values()]).sum().backward()
            optimizer.step()

        return learn

    # ---- what can be counted ------------------------------------------------------------------------------------

    @property
    def exported(self) -> ExportedModel | None:
        return self.model if isinstance(self.model, ExportedModel) else None

    @cached_property
    def figures(self) -> Figures | None:
        """Parameters, and multiply-adds of one image in this step; also finds out whether the size can be taken.

        None of an exported model, which does not tell.
        """
        if self.exported is not None:
            self.exported.session.require_size(*self.setting.size)
            return None
        trunk = next((part for part in self.model.modules() if isinstance(part, Backbone)), None)
        refusal = None if trunk is None else refusal_of_size(trunk, min(self.setting.size))
        if refusal is not None:
            height, width = self.setting.size
            raise InputError(f"model '{self.label}' cannot take images of {height}x{width} pixels: {refusal}")
        copied = meta_copy(self.model)
        copied = Outputs(copied) if isinstance(copied, Detector) else copied
        counted = count_model(copied, (3, *self.setting.size))
        return counted._replace(macs=counted.macs * (TRAINING_WORK if self.setting.step == "train" else 1))

    @property
    def regions_assumed(self) -> bool:
        """Whether the multiply-adds are those of as many regions as published counts assume: real ones depend on it."""
        return isinstance(self.model, RCNN)

    def memory(self) -> PassMemory | None:
        """Counted on tensors without values; None where what a model does depends on the values, or is hidden."""
        if self.exported is not None:
            return None
        learns = self.setting.step == "train"
        self.model.train(learns)
        with torch.set_grad_enabled(learns):
            try:
                return pass_memory(self.model, self.images, self._loss if learns else self._infer)
            except (torch.OutOfMemoryError, MemoryError):
                raise
            except RuntimeError:
                return None

    def _infer(self, model: Any, images: Tensor) -> list[Tensor]:
        Outputs(model)(images) if isinstance(model, Detector) else model(images)
        return []

    def _loss(self, model: Any, images: Tensor) -> list[Tensor]:
        if isinstance(model, Detector):  # what objects are found depends on values: all layers, with the most regions
            return tree_leaves(Outputs(model)(images))
        return list(self.task.losses(model, images, self.targets()).values())


class Outputs(nn.Module):
    """A detector without the choice of boxes, which needs values: the outputs of all its layers.

    A two-stage detector classifies as many regions as published counts assume, or in training the most it samples.
    """

    def __init__(self, model: Detector) -> None:
        super().__init__()
        self.detector = model
        self.train(model.training)

    def forward(self, images: Tensor) -> Any:
        if isinstance(self.detector, RCNN) and self.detector.training:
            regions, masks = TRAINED_REGIONS * len(images), TRAINED_MASKS * len(images)
            return self.detector.raw(images, proposals=regions, detections=masks)
        return self.detector.raw(images)


def meta_copy(model: nn.Module) -> nn.Module:
    """A copy without values: counting moves a model to the meta device, and this one is still needed."""
    made: dict[int, Any] = {id(p): nn.Parameter(p.detach().to("meta")) for p in model.parameters()}
    return deepcopy(model, made | {id(buffer): buffer.to("meta") for buffer in model.buffers()})


def box_targets(batch: int, height: int, width: int, classes: int, device: torch.device) -> Targets:
    """Objects of growing size from the upper left corner to the lower right one, the same in every image."""
    share = torch.linspace(0.1, 0.8, OBJECTS)
    corner = share * (1 - share)
    boxes = torch.stack(
        [corner * width, corner * height, (corner + share / 2) * width, (corner + share / 2) * height], 1
    )
    rows, columns = torch.arange(height)[:, None] + 0.5, torch.arange(width)[None] + 0.5
    x0, y0, x1, y1 = (side[:, None, None] for side in boxes.unbind(1))
    masks = ((columns > x0) & (columns < x1) & (rows > y0) & (rows < y1)).to(torch.uint8)  # (n, H, W)
    one: dict[str, Tensor] = {
        "boxes": boxes,
        "labels": torch.arange(OBJECTS) % classes,
        "crowd": torch.zeros(OBJECTS, dtype=torch.bool),
        "masks": masks,
    }
    targets: Targets = {key: [value.to(device)] * batch for key, value in one.items()}
    return targets | {"sizes": torch.tensor([(height, width)] * batch)}
