"""What can be explained in a picture that has more than one answer: a box, a region of a class, or a joint.

Shapes: h w picture as the model sees it, H W the same filled up at the right and the bottom.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitreous.attribution.target import BoxTarget, RegionTarget, Target, box_region, peaks
from vitreous.drawing.annotate import BACKGROUND, draw_objects, draw_outline, draw_place, enlarged
from vitreous.errors import InputError, nearest
from vitreous.tasks.base import Prediction, Task
from vitreous.tasks.detect import Detect
from vitreous.tasks.keypoints import Keypoints
from vitreous.tasks.segment import Segment

SURE = 0.3  # score of a box that counts as found, as in vitreous predict
Box = tuple[float, float, float, float]
ACCEPTED = {"classify": ("label",), "detect": ("finding", "label"), "segment": ("finding", "label", "region"),
            "keypoints": ("finding", "joint")}  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """Which finding is to be explained; nothing given: the first."""

    finding: int | None = None  # by rank, from 1
    label: str | None = None  # the best box or the largest region of a class
    joint: str | None = None
    region: Box | None = None  # left, top, right, bottom in pixels of the picture

    def check(self, kind: str, task: Task) -> None:
        """What the task cannot give is refused before the work."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        for name, value in given.items():
            if name not in ACCEPTED[kind]:
                accepted = ", ".join(f"--{each}" for each in ACCEPTED[kind])
                raise InputError(
                    f"--{name} {value} given, but this model is for the task '{kind}'; accepted: {accepted}"
                )
        if len(given) > 1 and set(given) != {"label", "region"}:
            raise InputError(f"{' and '.join(f'--{name}' for name in given)} given; each chooses a finding: give one")
        if self.label is not None and self.label not in task.classes:
            raise InputError(f"unknown class {self.label!r}; nearest: {nearest(self.label, list(task.classes))}")
        if isinstance(task, Keypoints) and self.joint is not None and self.joint not in task.names:
            raise InputError(f"unknown joint {self.joint!r}; accepted: {', '.join(task.names)}")
        if self.finding is not None and self.finding < 1:
            raise InputError(f"--finding {self.finding} given; findings are counted from 1, the best")
        if self.region is not None and not all(map(math.isfinite, self.region)):
            raise InputError(f"--region {self.region} given; left, top, right, bottom are numbers of pixels")


def read_region(text: str) -> Box:
    try:
        left, top, right, bottom = map(float, text.split(","))
    except ValueError as reason:
        raise InputError(
            f"--region {text} given; write left,top,right,bottom in pixels: --region 10,20,200,150"
        ) from reason
    return left, top, right, bottom


class Seen(NamedTuple):
    """A picture as the model sees it."""

    picture: Image.Image  # without what fills it up at the right and the bottom
    filled: tuple[int, int]  # height and width with that
    original: tuple[int, int]  # of the picture itself
    heatmaps: Tensor | None = None  # (1, joints, rows, columns), of a keypoint model

    @property
    def size(self) -> tuple[int, int]:
        return self.picture.height, self.picture.width

    def scaled(self, box: Box) -> Box:
        """From pixels of the picture to those the model sees."""
        down, across = (seen / whole for seen, whole in zip(self.size, self.original, strict=True))
        return box[0] * across, box[1] * down, box[2] * across, box[3] * down

    def filled_up(self, region: Tensor) -> Tensor:
        """(h, w) -> (1, H, W)."""
        down, across = (whole - own for whole, own in zip(self.filled, region.shape, strict=True))
        return F.pad(region, (0, across, 0, down))[None]


class Choice(NamedTuple):
    """Everything found, best first, and what of it is explained."""

    findings: list[dict[str, Any]]
    finding: dict[str, Any] | None = None
    target: Target | None = None
    marked: Image.Image | None = None  # the picture as the model sees it, larger, with the finding outlined
    nothing: str = ""  # why there is no target


def number_of(finding: dict[str, Any]) -> float:
    """What a finding is told with, and ranked by: its score as `vitreous predict` gives it; of a region, which has
    none, the share of the picture that its class covers, background last.
    """
    return finding["share"] if "share" in finding else finding["score"]


def choose_finding(task: Task, prediction: Prediction, seen: Seen, wanted: Wanted) -> Choice:
    for kind, choose in CHOOSERS.items():
        if isinstance(task, kind):
            return choose(task, prediction, seen, wanted)
    raise InputError(f"findings of {type(task).__name__} cannot be explained")


def taken(findings: list[dict[str, Any]], rank: int) -> dict[str, Any]:
    if rank > len(findings):
        known = ", ".join(entry["name"] for entry in findings[:10])
        raise InputError(f"finding {rank} was asked for, but there are {len(findings)}: {known}")
    return findings[rank - 1]


# ---- boxes -------------------------------------------------------------------------------------------------------


def choose_box(task: Detect, prediction: Prediction, seen: Seen, wanted: Wanted) -> Choice:
    rows = zip(*(prediction[key].tolist() for key in ("boxes", "labels", "scores")), strict=True)
    findings = [
        {
            "rank": rank,
            "short": f"box {rank}: {task.classes[label]}",
            "name": f"box {rank}: {task.classes[label]} {score:.2f}",
            "class": task.classes[label],
            "score": score,
            "box": box,
        }
        for rank, (box, label, score) in enumerate(rows, 1)
    ]
    if not findings:
        return Choice(findings, nothing="the model found no object")
    if wanted.finding is not None:
        finding = taken(findings, wanted.finding)
    else:
        fitting = [entry for entry in findings if wanted.label in (None, entry["class"])]
        if not fitting or fitting[0]["score"] < SURE:
            kind = wanted.label or "object"
            best = f"; the best is {fitting[0]['name']}: --finding {fitting[0]['rank']}" if fitting else ""
            return Choice(findings, nothing=f"the model found no {kind} with a score from {SURE:g}{best}")
        finding = fitting[0]
    label, box = task.classes.index(finding["class"]), seen.scaled(tuple(finding["box"]))
    larger, times = enlarged(seen.picture)
    marked = draw_objects(larger, np.array([box]) * times, [label], [""])
    target = BoxTarget(labels=torch.tensor([label]), boxes=torch.tensor([box]))
    return Choice(findings, finding, target, marked)


# ---- regions -----------------------------------------------------------------------------------------------------


def choose_region(task: Segment, prediction: Prediction, seen: Seen, wanted: Wanted) -> Choice:
    """The largest connected region of a class, or what lies in the region that was given."""
    semantic = prediction["semantic"]
    labels, counts = semantic.flatten().long().unique(return_counts=True)
    # Background comes last, whatever it covers.
    order = sorted(
        zip(labels.tolist(), counts.tolist(), strict=True), key=lambda pair: (is_background(task, pair[0]), -pair[1])
    )
    findings: list[dict[str, Any]] = [
        {
            "rank": rank,
            "short": f"region {rank}: {task.classes[label]}",
            "name": f"region {rank}: {task.classes[label]}, {count / semantic.numel():.0%} of the picture",
            "class": task.classes[label],
            "share": count / semantic.numel(),
        }
        for rank, (label, count) in enumerate(order, 1)
    ]
    if wanted.region is not None:
        return choose_given_region(task, semantic, seen, wanted, findings)
    if wanted.finding is not None:
        finding = taken(findings, wanted.finding)
    else:
        name = wanted.label or findings[0]["class"]
        fitting = [entry for entry in findings if entry["class"] == name]
        if not fitting:
            return Choice(findings, nothing=f"the model gives no pixel to {name}")
        if wanted.label is None and name == BACKGROUND:
            return Choice(findings, nothing="the model sees nothing but background; --label background explains that")
        finding = fitting[0]
    label = task.classes.index(finding["class"])
    small = F.interpolate(semantic[None, None].float(), seen.size, mode="nearest-exact")[0, 0]
    if not (small == label).any():  # a few pixels of a large picture
        return Choice(findings, nothing=f"{finding['class']} covers too little to be seen at the model's size")
    return outlined(seen, findings, finding, label, largest_part(small == label))


def choose_given_region(
    task: Segment, semantic: Tensor, seen: Seen, wanted: Wanted, findings: list[dict[str, Any]]
) -> Choice:
    assert wanted.region is not None
    inside = semantic[box_region(wanted.region, *seen.original)].long()  # refuses what lies outside
    label = int(inside.bincount().argmax()) if wanted.label is None else task.classes.index(wanted.label)
    left, top, right, bottom = seen.scaled(wanted.region)
    outer = math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)  # never without a pixel
    name = task.classes[label]
    where = ",".join(f"{side:g}" for side in wanted.region)
    finding = {"rank": None, "name": f"{name} in the region {where}", "class": name, "region": list(wanted.region)}
    return outlined(seen, findings, finding, label, box_region(outer, *seen.size))


def outlined(seen: Seen, findings: list[dict[str, Any]], finding: dict[str, Any], label: int, region: Tensor) -> Choice:
    marked = draw_outline(enlarged(seen.picture)[0], region.numpy(), label)
    target = RegionTarget(labels=torch.tensor([label]), region=seen.filled_up(region))
    return Choice(findings, finding, target, marked)


def is_background(task: Task, label: int) -> bool:
    return task.classes[label] == BACKGROUND


def largest_part(mask: Tensor) -> Tensor:
    """The largest connected part of a mask (h, w)."""
    part = parts(mask)
    return mask & (part == part[mask].mode().values)


def parts(mask: Tensor) -> Tensor:
    """For every pixel the number of its connected part, corners included, -1 outside: (h, w).

    Every pixel points to a pixel of its part with the highest number it has heard of; pointing on along such pointers
    makes the way short, however winding the part is.
    """
    inside = mask.flatten()
    heard = torch.arange(len(inside)).where(inside, torch.tensor(-1))
    while True:
        around = F.max_pool2d(heard.view(1, 1, *mask.shape).double(), 3, 1, 1).long().flatten()
        told = torch.where(inside, around, -1)
        told[inside] = told[told[inside]]
        if torch.equal(told, heard):
            return heard.view_as(mask)
        heard = told


# ---- joints ------------------------------------------------------------------------------------------------------


def choose_joint(task: Keypoints, prediction: Prediction, seen: Seen, wanted: Wanted) -> Choice:
    assert seen.heatmaps is not None
    points = prediction["keypoints"].tolist()
    order = sorted(range(len(points)), key=lambda joint: -points[joint][2])
    findings = [
        {
            "rank": rank,
            "short": f"joint {rank}: {task.names[joint]}",
            "name": f"joint {rank}: {task.names[joint]} {points[joint][2]:.2f}",
            "joint": task.names[joint],
            "score": points[joint][2],
            "place": points[joint][:2],
        }
        for rank, joint in enumerate(order, 1)
    ]
    rank = 1 + order.index(task.names.index(wanted.joint)) if wanted.joint is not None else wanted.finding or 1
    finding = taken(findings, rank)
    joint = order[rank - 1]
    target = peaks(seen.heatmaps, torch.tensor([joint]))
    assert target.places is not None
    larger, times = enlarged(seen.picture)
    cell = seen.picture.height / seen.heatmaps.shape[2]  # pixels
    row, column = target.places[0].tolist()
    place = ((column + 0.5) * cell * times, (row + 0.5) * cell * times)
    return Choice(findings, finding, target, draw_place(larger, place, joint))


CHOOSERS: dict[type[Task], Callable[..., Choice]] = {
    Detect: choose_box,
    Segment: choose_region,
    Keypoints: choose_joint,
}
