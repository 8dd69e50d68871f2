"""What of a model goes into its graph: images in, named tensors out.

A graph ends where numbers of a fixed meaning are there: logits, heat maps, or the score and the box of every place that
a detector looks at. What chooses among them (the best classes, peaks, boxes that do not overlap) is left to the program
around it, because it depends on values and is a few lines of numpy.

Shapes: B images, K classes, J joints, A places that a detector looks at, h w a grid.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

from vitreous.attribution.explainer import LearnedExplainer, class_activation, classifier_rows, look_inside
from vitreous.errors import InputError
from vitreous.heads.one_stage import DenseDetector
from vitreous.heads.pyramid import Levels
from vitreous.heads.segment import Segmenter
from vitreous.heads.sparse_rcnn import SparseRCNN
from vitreous.heads.ssd import SSD
from vitreous.heads.two_stage import RCNN
from vitreous.layers.tap import record, tap_names

NamedOutputs = dict[str, Tensor]
LOGITS, HEATMAPS, SCORES, BOXES, POOLED = "logits", "heatmaps", "scores", "boxes", "pooled"
EXPLANATION, OBJECTNESS, MASKS = "explanation", "objectness", "masks"
WITHOUT_HEAD = "features"  # the kind of a graph without a head
DETECTOR_KINDS = {DenseDetector: "detect", SSD: "detect", RCNN: "propose", SparseRCNN: "refine"}
STAGE_OUTPUT = "output"  # the tap of a stage's features, which is neither clusters nor attention


def class_logits(model: Any, images: Tensor) -> NamedOutputs:
    return {LOGITS: model(images)}  # (B, K)


def pixel_logits(model: Segmenter, images: Tensor) -> NamedOutputs:
    return {LOGITS: model.output(images, auxiliary=False).logits}  # (B, K, h, w)


def joint_heatmaps(model: Any, images: Tensor) -> NamedOutputs:
    return {HEATMAPS: model(images)}  # (B, J, h, w)


def scored_boxes(model: Any, images: Tensor) -> NamedOutputs:
    scores, boxes = model.everywhere(images)
    return {SCORES: scores, BOXES: boxes}  # (B, A, K), (B, A, 4) in pixels of the image


def proposed_boxes(model: RCNN, images: Tensor) -> NamedOutputs:
    """Of every anchor, and the maps from which `exports/regions.py` goes on."""
    objectness, boxes, maps = model.proposed(images)
    return {OBJECTNESS: objectness, BOXES: boxes, **dict(zip(map_names(len(maps)), maps, strict=True))}


def pyramid_maps(model: SparseRCNN, images: Tensor) -> NamedOutputs:
    maps = list(model.backbone(images).values())
    return dict(zip(map_names(len(maps)), maps, strict=True))


def map_names(count: int) -> tuple[str, ...]:
    return tuple(f"map{number}" for number in range(1, count + 1))


def feature_maps(model: Any, images: Tensor) -> NamedOutputs:
    """The maps of all stages, fine to coarse, and of a classifier also what it reads."""
    if not hasattr(model, "forward_intermediates"):
        levels = next(part for part in model.modules() if isinstance(part, Levels))
        return {f"map{number}": found for number, found in enumerate(levels.maps(images), 1)}
    final, maps = model.forward_intermediates(images)
    named = {f"map{number}": found for number, found in enumerate(maps, 1)}  # (B, C, h, w)
    return named | {POOLED: model.forward_head(final, pre_logits=True)}  # (B, C)


KINDS: dict[str, Callable[[Any, Tensor], NamedOutputs]] = {
    "classify": class_logits,
    "segment": pixel_logits,
    "keypoints": joint_heatmaps,
    "detect": scored_boxes,
    "propose": proposed_boxes,
    "refine": pyramid_maps,
    WITHOUT_HEAD: feature_maps,
}
TASKS = ("classify", "segment", "keypoints", "detect")


class GraphModel(nn.Module):
    """Images (B, 3, H, W) -> a tuple of tensors in the order of `named`: the answer, then maps of taps."""

    def __init__(
        self, model: nn.Module, kind: str, maps: Sequence[str] = (), explainer: LearnedExplainer | None = None
    ) -> None:
        super().__init__()
        self.model, self.kind, self.maps, self.explainer = model, kind, tuple(maps), explainer
        self.eval()

    def named(self, images: Tensor) -> NamedOutputs:
        listening: Any = record(self.model, *self.maps) if self.maps else nullcontext({})
        with listening as recorded:
            found = KINDS[self.kind](self.model, images) if self.explainer is None else self._explained(images)
        return found | {name: recorded[name] for name in self.maps}

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.named(images).values())

    def _explained(self, images: Tensor) -> NamedOutputs:
        """The logits, and the explainer's map (B, h, w) of the likeliest class, from one pass of the model."""
        model: Any = self.model
        explainer = self.explainer
        assert explainer is not None
        inside = look_inside(model, images, explainer.stages)
        logits = model.forward_head(inside.final)
        labels, weights = logits.argmax(1), classifier_rows(model)
        rows = None if weights is None or not explainer.row else weights[labels].float()
        prior = class_activation(inside, rows) if len(explainer.trust) else None
        return {LOGITS: logits, EXPLANATION: explainer(inside.maps, labels, rows, prior)}


def graph_kind(model: nn.Module, task: str, *, features: bool) -> str:
    """What the graph of a model gives, a key of KINDS; a model that has no graph is refused."""
    if features:
        if not hasattr(model, "forward_intermediates") and not any(
            isinstance(part, Levels) for part in model.modules()
        ):
            raise InputError(f"--features given, but {type(model).__name__} gives no feature maps; leave it out")
        return WITHOUT_HEAD
    if task not in TASKS:
        raise InputError(f"models of the task '{task}' cannot be exported; those of {', '.join(TASKS)} can")
    if task != "detect":
        return task
    kinds = [kind for known, kind in DETECTOR_KINDS.items() if isinstance(model, known)]
    if not kinds:
        raise InputError(
            f"how {type(model).__name__} chooses its boxes is not known, so that it cannot be exported; its maps can: "
            "--features"
        )
    return kinds[0]


def shown_taps(model: nn.Module) -> tuple[str, ...]:
    """Paths of the taps of clusters and attention, which a graph can keep as outputs."""
    found = tuple(name for name in tap_names(model) if name.rpartition(".")[2] != STAGE_OUTPUT)
    if not found:
        raise InputError(
            f"--maps given, but {type(model).__name__} has no maps of clusters or attention; leave it out, or export a "
            "model that has: vitreous info"
        )
    return found
