"""What the data say about a finding: the object it stands for, and what that really is.

Shapes: h w picture as the model sees it, without what fills it up; n objects.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchvision.ops import box_iou

from vitreous.attribution.target import BoxTarget, JointTarget, RegionTarget, Target, box_region
from vitreous.data.joint import IGNORE, DetectView
from vitreous.data.transforms import Preprocess
from vitreous.explanations.findings import parts
from vitreous.tasks.base import View, WithHead

SAME = 0.5  # overlap from which on a box counts as found, as in AP50
REACH = 0.1  # of the larger side of the object: how far from its place a joint counts as found, as in PCK@0.1
NOTHING = -1  # the label of a place where there is no such thing


class Truth(NamedTuple):
    mask: Tensor | None = None  # (h, w), True on the object; None where there is none, or nobody knows
    label: int | None = None  # of the object, among the classes or joints; `NOTHING`; or None: nobody knows


def truth_view(task: WithHead, preprocess: Preprocess) -> View:
    """How the task looks at pictures, with the masks of objects."""
    view = task.evaluation_view(preprocess)
    return replace(view, masks=True) if isinstance(view, DetectView) else view


def true_object(target: BoxTarget, seen: dict[str, Any], size: tuple[int, int]) -> Truth:
    """The object whose box overlaps best, whatever its class: what a map should lie on is what the box holds."""
    single = ~seen["crowd"]
    boxes = seen["boxes"][single]
    overlap = box_iou(target.boxes.to(boxes), boxes)[0]  # (n,)
    if not len(boxes) or overlap.max() < SAME:
        return Truth(label=NOTHING)
    best = overlap.argmax()
    if "masks" in seen:
        mask = seen["masks"][single][best].bool()
    else:
        left, top, right, bottom = boxes[best].tolist()
        outer = math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)  # never without a pixel
        mask = box_region(outer, *size)
    return Truth(mask if mask.any() else None, int(seen["labels"][single][best]))


def true_region(target: RegionTarget, seen: dict[str, Any], size: tuple[int, int]) -> Truth:
    """The true parts of the class that the region meets: others of its kind elsewhere are not what was found."""
    semantic = seen["semantic"]
    region = target.region[0, : size[0], : size[1]].bool()
    within = semantic[region & (semantic != IGNORE)]
    if not len(within):
        return Truth()
    there = semantic == target.labels[0]
    part = parts(there)
    mask = there & torch.isin(part, part[there & region])
    return Truth(mask if mask.any() else None, int(within.bincount().argmax()))


def true_joint(target: JointTarget, seen: dict[str, Any], size: tuple[int, int]) -> Truth:
    """A disc around the joint, within which it counts as found. A joint has no outline of its own."""
    joint = int(target.joints[0])
    x, y, visibility = seen["keypoints"][joint].tolist()
    if not visibility:
        return Truth()
    left, top, right, bottom = seen["boxes"].tolist()
    (height, width), (rows, columns) = size, seen["heatmaps"].shape[1:]
    across, down = torch.meshgrid(torch.arange(width) + 0.5, torch.arange(height) + 0.5, indexing="xy")
    place = torch.stack([across, down, torch.ones_like(down)], -1) @ seen["to_picture"].T  # (h, w, 2)
    mask = torch.hypot(place[..., 0] - x, place[..., 1] - y) <= REACH * max(right - left, bottom - top)
    assert target.places is not None
    row, column = target.places[0].tolist()
    peak = mask[int((row + 0.5) * height / rows), int((column + 0.5) * width / columns)]
    return Truth(mask if mask.any() else None, joint if peak else NOTHING)


TRUTHS: dict[type[Target], Callable[..., Truth]] = {
    BoxTarget: true_object,
    RegionTarget: true_region,
    JointTarget: true_joint,
}


def truth_of(target: Target, seen: dict[str, Any], size: tuple[int, int]) -> Truth:
    """`seen` is what is to be learnt about the picture, through `truth_view`; `size` is (h, w)."""
    return TRUTHS[type(target)](target, seen, size)
