"""What is explained: one number per image, taken from whatever a model returns.

A target is a callable, `target(output) -> (B,)`, higher meaning more of what is explained. `target.on(scale)` reads the
same thing on another scale, and `target.select(rows)` is the target of other images of the batch, repeated at will:
methods that run many changed copies of an image need both.

Scales: "logit" is the model's raw number; "log_odds" is log p - log(1 - p), which does not saturate and also counts
evidence for the other classes; "probability" lies between 0 and 1.

Shapes: B batch, K classes or joints, H W grid of a dense output.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torchvision.ops import box_iou

from vitreous.errors import InputError

Scale = Literal["logit", "log_odds", "probability"]
LINEAR_BEYOND = 0.05  # log-odds of a heat map's value are a straight line beyond this, and beyond one minus this
SMALLEST_PROBABILITY = (
    1e-6  # probabilities that are no softmax are kept this far from 0 and 1, where log-odds are infinite
)


@dataclass(frozen=True, eq=False)
class Target(ABC):
    """Base of all targets; every tensor field of a subclass has one row per image."""

    scale: Scale = "log_odds"

    @abstractmethod
    def __call__(self, output: Any) -> Tensor:
        """What is explained, (B,), on the target's scale."""

    @abstractmethod
    def holds(self, output: Any) -> Tensor:
        """Whether this is still what the model says, (B,) of booleans."""

    def on(self, scale: Scale) -> Self:
        return replace(self, scale=scale)

    def select(self, rows: Tensor) -> Self:
        """The target of the images `rows` (numbers within the batch, in any order, repeated or not)."""
        return replace(self, **{name: value[rows.to(value.device)] for name, value in self.tensors().items()})

    def to(self, device: torch.device) -> Self:
        return replace(self, **{name: value.to(device) for name, value in self.tensors().items()})

    def tensors(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), Tensor)}


def class_score(logits: Tensor, labels: Tensor, scale: Scale) -> Tensor:
    """One class per row of (B, K, ...) on a scale: (B, ...). Log-odds are computed from logits, so they stay exact."""
    index = labels.view(-1, *[1] * (logits.ndim - 1)).expand(-1, 1, *logits.shape[2:])
    own = logits.gather(1, index)[:, 0]
    if scale == "logit":
        return own
    if scale == "probability":
        return (own - logits.logsumexp(1)).exp()
    return own - logits.scatter(1, index, -torch.inf).logsumexp(1)


def at_least_float32(output: Tensor) -> Tensor:
    """At least single precision: log-odds of half precision are too coarse to compare."""
    return output.to(torch.promote_types(output.dtype, torch.float32))


def from_probability(probability: Tensor, scale: Scale) -> Tensor:
    return probability if scale == "probability" else probability.logit(SMALLEST_PROBABILITY)


@dataclass(frozen=True, eq=False)
class ClassTarget(Target):
    """A class of a classifier whose output is (B, K) logits."""

    labels: Tensor = None  # type: ignore[assignment]  # (B,), required: `scale` of the base has a default

    def __call__(self, output: Tensor) -> Tensor:
        return class_score(at_least_float32(output), self.labels, self.scale)

    def holds(self, output: Tensor) -> Tensor:
        return output.argmax(1) == self.labels


@dataclass(frozen=True, eq=False)
class RegionTarget(Target):
    """A class averaged over a region of a segmentation: (B, K, H, W) logits, or an object with such `logits`."""

    labels: Tensor = None  # type: ignore[assignment]  # (B,)
    region: Tensor = None  # type: ignore[assignment]  # (B, height, width), True inside; any size

    def __post_init__(self) -> None:
        empty = (~self.region.bool().flatten(1).any(1)).nonzero().flatten().tolist()
        if empty:
            raise InputError(f"the region of image {empty[0]} is empty; draw one that covers at least one pixel")

    def __call__(self, output: Any) -> Tensor:
        logits = at_least_float32(dense_logits(output))
        inside = self.share(logits)
        return (class_score(logits, self.labels, self.scale) * inside).sum((1, 2)) / inside.sum((1, 2))

    def holds(self, output: Any) -> Tensor:
        """Whether most of the region is given this class."""
        logits = dense_logits(output)
        inside = self.share(at_least_float32(logits))
        right = (logits.argmax(1) == self.labels[:, None, None]) * inside
        return right.sum((1, 2)) > inside.sum((1, 2)) / 2

    def share(self, logits: Tensor) -> Tensor:
        """Share of each cell of the output that lies in the region: small regions do not vanish on a coarse grid."""
        region = self.region.to(logits.device, logits.dtype)[:, None]
        return torch.nn.functional.interpolate(region, logits.shape[2:], mode="area")[:, 0]


def box_region(box: Sequence[float], height: int, width: int) -> Tensor:
    """The region (height, width) of a box: left, top, right, bottom in pixels, cut at the image's border."""
    left, top, right, bottom = box
    rows, columns = torch.arange(height) + 0.5, torch.arange(width) + 0.5
    inside = ((rows >= top) & (rows < bottom))[:, None] & ((columns >= left) & (columns < right))
    if not inside.any():
        raise InputError(
            f"the region {tuple(box)} covers no pixel; give left, top, right, bottom within {width} x {height} pixels"
        )
    return inside


def dense_logits(output: Any) -> Tensor:
    if isinstance(output, dict):
        output = output.get("logits", output.get("out"))
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if logits is None or logits.ndim != 4:
        raise InputError(
            f"a region needs a model that labels pixels, with an output of shape (B, classes, height, width); "
            f"this one returns {_describe_output(output)}"
        )
    return logits


@dataclass(frozen=True, eq=False)
class BoxTarget(Target):
    """A detection: the best score times overlap among detections of the box's class.

    The output is one dict per image with `boxes` (n, 4), `labels` and `scores`, as torchvision's detectors return.
    An object that is no longer found, or found elsewhere, counts as lost; with no detection left the score is 0.
    """

    labels: Tensor = None  # type: ignore[assignment]  # (B,)
    boxes: Tensor = None  # type: ignore[assignment]  # (B, 4) left, top, right, bottom in pixels

    def __call__(self, output: Any) -> Tensor:
        return from_probability(torch.stack([self.found(i, item) for i, item in enumerate(output)]), self.scale)

    def found(self, image: int, item: dict[str, Tensor]) -> Tensor:
        same = item["labels"] == self.labels[image]
        alike = box_iou(self.boxes[image][None].to(item["boxes"]), item["boxes"][same])[0] * item["scores"][same]
        return alike.max() if len(alike) else item["scores"].sum() * 0

    def holds(self, output: Any) -> Tensor:
        return self.on("probability")(output) >= 0.25  # half the score at half the overlap


@dataclass(frozen=True, eq=False)
class JointTarget(Target):
    """A joint's peak in heat maps (B, joints, H, W): the value at a place, or the highest one anywhere.

    Heat maps are learned to lie between 0 and 1, so that a value is read as a probability; "logit" is the bare value.
    Nothing keeps them there, so that below 0.05 and above 0.95 log-odds go on along their tangent: a peak of 1.02 would
    else have no slope, and one of 0.9999 count more than it can mean.
    """

    joints: Tensor = None  # type: ignore[assignment]  # (B,)
    places: Tensor | None = None  # (B, 2) row and column in the heat map; None for its highest value

    def __call__(self, output: Tensor) -> Tensor:
        chosen = self.heat(output)
        value = chosen.flatten(1).amax(1) if self.places is None else chosen[torch.arange(len(chosen)), *self.places.T]
        if self.scale == "logit":
            return value
        if self.scale == "probability":
            return value.clamp(0, 1)
        inner = value.detach().clamp(LINEAR_BEYOND, 1 - LINEAR_BEYOND)
        within = (value > LINEAR_BEYOND) & (value < 1 - LINEAR_BEYOND)
        return torch.where(within, value.logit(LINEAR_BEYOND), inner.logit() + (value - inner) / (inner * (1 - inner)))

    def holds(self, output: Tensor) -> Tensor:
        """Whether the peak is still within two cells of its place (everywhere, if it has none)."""
        chosen = self.heat(output)
        if self.places is None:
            return torch.ones(len(chosen), dtype=torch.bool, device=chosen.device)
        rows, columns = torch.unravel_index(chosen.flatten(1).argmax(1), chosen.shape[1:])
        return (torch.stack([rows, columns], 1) - self.places).abs().amax(1) <= 2

    def heat(self, output: Tensor) -> Tensor:
        return at_least_float32(output)[torch.arange(len(output)), self.joints]  # (B, H, W)


def peaks(output: Tensor, joints: Tensor) -> JointTarget:
    """The target "this joint, where the model now sees it"."""
    chosen = output[torch.arange(len(output)), joints]
    places = torch.stack(torch.unravel_index(chosen.flatten(1).argmax(1), chosen.shape[1:]), 1)
    return JointTarget(joints=joints, places=places)


def as_target(given: Target | Tensor | int | None, output: Any, images: int) -> Target:
    """A target as it is; class numbers as a `ClassTarget`; None as the predicted class."""
    if isinstance(given, Target):
        return given
    if not isinstance(output, Tensor) or output.ndim != 2:
        raise InputError(
            f"a class was to be explained, but the model returns {_describe_output(output)} and not (B, classes); "
            "give a RegionTarget, BoxTarget or JointTarget"
        )
    if given is None:
        return ClassTarget(labels=output.argmax(1))
    labels = torch.as_tensor(given, device=output.device).expand(images)
    wrong = labels[(labels < 0) | (labels >= output.shape[1])].tolist()
    if wrong:
        raise InputError(f"class {wrong[0]} was to be explained; this model has classes 0 to {output.shape[1] - 1}")
    return ClassTarget(labels=labels)


def _describe_output(output: Any) -> str:
    return f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
