"""What all detectors share: ground truth, crowds, anchors, the selection of final boxes, and the base class.

Shapes: B batch, n objects or boxes of one image, A anchors of all levels, K classes. Boxes are x0 y0 x1 y1 in pixels.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchvision.ops import batched_nms, clip_boxes_to_image, remove_small_boxes

from vitreous.errors import InputError

BACKGROUND_INDEX, IGNORED_INDEX = -1, -2  # in place of an object's index, for anchors and regions without one
Shape = tuple[int, int]
Decode = Callable[[Tensor, Tensor], Tensor]  # rows and classes, (n,) each -> boxes (n, 4)


class GroundTruth(NamedTuple):
    """The annotations of one image. Crowds, groups of objects under one box, are neither objects nor background."""

    boxes: Tensor  # (n, 4)
    labels: Tensor  # (n,)
    crowds: Tensor  # (m, 4)
    masks: Tensor | None  # (n, H, W)
    shape: Shape  # height and width without padding


class Selection(NamedTuple):
    """Which boxes are detections: the best of each level, above a score, after non-maximum suppression."""

    score: float
    overlap: float
    candidates: int  # per level
    detections: int  # per image


class Candidates(NamedTuple):
    """All boxes that a detector considers in one image, before selection: N boxes, K classes."""

    scores: Tensor  # (N, K)
    decode: Decode
    levels: tuple[int, ...]  # how many of the N belong to each level


class Detector(nn.Module, ABC):
    """Takes normalised images (B, 3, H, W), padded at the bottom and right, and their `sizes` (B, 2) without padding.

    With targets it gives losses by name, in training and in evaluation. Without, it gives one dict per image: `boxes`
    (n, 4) within the image, `labels` (n,) from 0, `scores` (n,) descending, and `masks` (n, 28, 28) if there are any.
    """

    selection: Selection

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor, targets: dict[str, Any] | None = None, *, sizes: Tensor | None = None) -> Any:
        if targets is not None:
            sizes = targets["sizes"]
        shapes, features = image_shapes(images, sizes), self.pyramid(images, sizes)
        if targets is None:
            return self.predictions(features, shapes)
        return self.losses(features, shapes, ground_truths(targets, shapes, images.device))

    def pyramid(self, images: Tensor, sizes: Tensor | None) -> list[Tensor]:
        return list(self.backbone(images if sizes is None else blank_padding(images, sizes)).values())

    def all_of(self, images: Tensor, classes: Sequence[int], *, sizes: Tensor | None = None) -> list[dict[str, Tensor]]:
        """All candidates for these classes, whatever their score: differentiable, unlike `forward` with its thresholds.

        For each image `boxes`, `labels` and `scores`, in no particular order.
        """
        shapes, found = image_shapes(images, sizes), []
        for one, shape in zip(self.considered(self.pyramid(images, sizes), shapes), shapes, strict=True):
            count = len(one.scores)
            labels = torch.tensor(classes, device=images.device).repeat_interleave(count)
            rows = torch.arange(count, device=images.device).repeat(len(classes))
            boxes = clip_boxes_to_image(one.decode(rows, labels), shape)
            found.append({"boxes": boxes, "labels": labels, "scores": one.scores[rows, labels]})
        return found

    @abstractmethod
    def losses(self, features: list[Tensor], shapes: list[Shape], objects: list[GroundTruth]) -> dict[str, Tensor]:
        """Loss terms by name, which training sums."""

    @abstractmethod
    def considered(self, features: list[Tensor], shapes: list[Shape]) -> list[Candidates]:
        """For each image all boxes before selection."""

    def predictions(self, features: list[Tensor], shapes: list[Shape]) -> list[dict[str, Tensor]]:
        considered = zip(self.considered(features, shapes), shapes, strict=True)
        return [select_detections(one, shape, self.selection) for one, shape in considered]

    @abstractmethod
    def raw(self, images: Tensor) -> Any:
        """The outputs of all layers, without selection: countable on the meta device, and exportable."""


def image_shapes(images: Tensor, sizes: Tensor | None) -> list[Shape]:
    height, width = images.shape[2:]
    if sizes is None:
        return [(height, width)] * len(images)
    shapes = [(int(h), int(w)) for h, w in sizes.tolist()]
    if len(shapes) != len(images) or any(not (0 < h <= height and 0 < w <= width) for h, w in shapes):
        raise InputError(f"sizes={shapes} given for {len(images)} images padded to {height}x{width} pixels")
    return shapes


def blank_padding(images: Tensor, sizes: Tensor) -> Tensor:
    """Images with zeros, the mean colour, in the padding, whatever it was before normalisation."""
    height, width = sizes.to(images.device).view(-1, 2, 1).unbind(1)  # (B, 1) each
    rows = torch.arange(images.shape[2], device=images.device) < height  # (B, H)
    columns = torch.arange(images.shape[3], device=images.device) < width  # (B, W)
    return torch.where((rows[:, :, None] & columns[:, None])[:, None], images, images.new_zeros(()))


def ground_truths(targets: dict[str, Any], shapes: list[Shape], device: torch.device) -> list[GroundTruth]:
    """One for each image. Boxes without area are left out: they cannot be learned."""
    found = []
    for i, shape in enumerate(shapes):
        boxes = targets["boxes"][i].to(device, torch.float32).reshape(-1, 4)
        whole = (boxes[:, 2:] > boxes[:, :2]).all(1) & boxes.isfinite().all(1)
        crowd = targets["crowd"][i].to(device).bool() if "crowd" in targets else torch.zeros_like(whole)
        taken = whole & ~crowd
        masks = targets["masks"][i].to(device)[taken] if targets.get("masks") is not None else None
        labels = targets["labels"][i].to(device)[taken]
        found.append(GroundTruth(boxes[taken], labels, boxes[whole & crowd], masks, shape))
    return found


def ignored_boxes(boxes: Tensor, truth: GroundTruth) -> Tensor:
    """Which boxes (n, 4) do not count as background: more than half in a crowd, or centred in the padding."""
    out = (box_centres(boxes) >= boxes.new_tensor(truth.shape[::-1])).any(1)
    if len(truth.crowds):
        low = torch.maximum(boxes[:, None, :2], truth.crowds[:, :2])
        high = torch.minimum(boxes[:, None, 2:], truth.crowds[:, 2:])
        area = (boxes[:, 2:] - boxes[:, :2]).clamp(0).prod(1)
        out |= ((high - low).clamp(0).prod(2) > 0.5 * area[:, None]).any(1)
    return out


def match_objects(boxes: Tensor, truth: GroundTruth, match: Callable[[Tensor], Tensor]) -> Tensor:
    """For each of the boxes (n, 4) the index of its object, BACKGROUND_INDEX or IGNORED_INDEX.

    `match` finds them, given the boxes of the objects, of which there is at least one.
    """
    matched = match(truth.boxes) if len(truth.boxes) else torch.full_like(boxes[:, 0], BACKGROUND_INDEX).long()
    return torch.where((matched == BACKGROUND_INDEX) & ignored_boxes(boxes, truth), IGNORED_INDEX, matched)


def box_centres(boxes: Tensor) -> Tensor:
    return (boxes[..., :2] + boxes[..., 2:]) / 2


class Anchors(nn.Module):
    """Boxes of several sizes and shapes around every position of every level, by level, row, column and cell box.

    Unlike torchvision's, they are not rounded, and strides are not derived from sizes, which is wrong if a side is not
    a multiple of the stride.
    """

    def __init__(
        self, strides: Sequence[int], cells: Sequence[Tensor], *, offset: float = 0.0, even: bool = False
    ) -> None:
        """`cells`: for each level the boxes (a, 4) around a position.

        `offset`: distance of positions from the first corner of their cell, in strides. `even`: positions divide the
        image evenly instead of by strides.
        """
        super().__init__()
        self.strides, self.cells, self.offset, self.even = tuple(strides), tuple(cells), offset, even

    @property
    def counts(self) -> list[int]:
        """Number of boxes per position of each level."""
        return [len(cell) for cell in self.cells]

    def levels(self, features: Sequence[Tensor]) -> list[Tensor]:
        found = []
        extent = [side * self.strides[0] for side in features[0].shape[2:]]
        for level, stride, cell in zip(features, self.strides, self.cells, strict=True):
            steps = [whole / side for whole, side in zip(extent, level.shape[2:], strict=True)]
            y, x = (
                (torch.arange(side, device=level.device) + self.offset) * (step if self.even else stride)
                for side, step in zip(level.shape[2:], steps, strict=True)
            )
            grid = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], 2).repeat(1, 1, 2)  # (H, W, 4)
            found.append((grid[:, :, None] + cell.to(level.device)).flatten(0, 2))  # (HWa, 4)
        return found


def decode_all(decode: Callable[[Tensor, Tensor], Tensor], codes: Tensor, anchors: Sequence[Tensor]) -> Tensor:
    """Boxes (B, A, 4) of codes (B, A, 4) at the anchors of all levels; `decode` takes rows of both."""
    together = torch.cat(list(anchors)).expand(codes.shape[0], -1, -1)  # (B, A, 4)
    return decode(codes.flatten(0, 1), together.flatten(0, 1)).reshape(codes.shape)


def cell_boxes(sizes: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """Boxes around 0 of all sizes (side of a square of the same area) in all ratios (height / width), ratios first.

    Always on the CPU: they are constants, which no file would restore in a model made on the meta device.
    """
    size, ratio = (torch.tensor(values, dtype=torch.float32, device="cpu") for values in (sizes, ratios))
    ratio = ratio[:, None]
    half = torch.stack([size / ratio.sqrt(), size * ratio.sqrt()], 2).flatten(0, 1) / 2  # (ratios x sizes, 2)
    return torch.cat([-half, half], 1)


def level_cells(
    sizes: Sequence[float | Sequence[float]] | None,
    ratios: Sequence[float],
    strides: Sequence[int],
    default: Sequence[float],
) -> list[Tensor]:
    """The boxes around a position of every level, with the given sizes or `default` times the stride."""
    if not ratios or min(ratios) <= 0:
        raise InputError(f"anchor_ratios={ratios!r} given; at least one is needed, and all must be above 0")
    if sizes is None:
        sizes = [tuple(times * stride for times in default) for stride in strides]
    return [cell_boxes(row, ratios) for row in size_rows(sizes, strides)]


def size_rows(given: Sequence[float | Sequence[float]], strides: Sequence[int]) -> list[tuple[float, ...]]:
    rows = [(float(row),) if isinstance(row, int | float) else tuple(map(float, row)) for row in given]
    if len(rows) != len(strides) or any(not row or min(row) <= 0 for row in rows):
        raise InputError(
            f"anchor_sizes={given!r} given; one size in pixels, or several, is needed for each of the levels of "
            f"strides {', '.join(map(str, strides))}"
        )
    if len({len(row) for row in rows}) > 1:
        raise InputError(f"anchor_sizes={given!r} given; all levels need the same number of sizes")
    return rows


class PositiveAnchors(NamedTuple):
    """The anchors of all images that are matched with an object."""

    images: Tensor  # (P,)
    places: Tensor  # (P,) among the anchors
    labels: Tensor  # (P,)
    boxes: Tensor  # (P, 4)


def collect_positives(matched: Tensor, objects: list[GroundTruth]) -> PositiveAnchors:
    """The positive anchors, given the object index of every anchor of every image (B, A)."""
    images, places = (matched >= 0).nonzero(as_tuple=True)
    before = torch.tensor([0, *(len(truth.boxes) for truth in objects)], device=matched.device).cumsum(0)
    numbers = matched[images, places] + before[images]  # among the objects of all images
    labels, boxes = (torch.cat(parts) for parts in zip(*((t.labels, t.boxes) for t in objects), strict=True))
    return PositiveAnchors(images, places, labels[numbers], boxes[numbers])


def select_detections(considered: Candidates, shape: Shape, selection: Selection) -> dict[str, Tensor]:
    """The final boxes of one image, best first."""
    parts, start = [], 0
    for level in considered.scores.split(list(considered.levels)):
        values, row, label = top_scores(level, selection)
        parts.append((values, row + start, label))
        start += len(level)
    scores, rows, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    return suppress_overlaps(clip_boxes_to_image(considered.decode(rows, labels), shape), labels, scores, selection)


def suppress_overlaps(boxes: Tensor, labels: Tensor, scores: Tensor, selection: Selection) -> dict[str, Tensor]:
    """Drop tiny boxes, then apply non-maximum suppression per class; best first."""
    kept = remove_small_boxes(boxes, 1e-2)
    boxes, scores, labels = boxes[kept], scores[kept], labels[kept]
    kept = batched_nms(boxes, scores, labels, selection.overlap)[: selection.detections]
    return {"boxes": boxes[kept], "labels": labels[kept], "scores": scores[kept]}


def top_scores(scores: Tensor, selection: Selection) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (n, K) -> the top ones above the threshold, with the row and the class of each."""
    some = (scores.amax(1) > selection.score).nonzero()[:, 0]  # most of the many rows have none
    part = scores[some]
    row, label = (part > selection.score).nonzero(as_tuple=True)
    values, order = part[row, label].topk(min(selection.candidates, len(row)))
    return values, some[row[order]], label[order]
