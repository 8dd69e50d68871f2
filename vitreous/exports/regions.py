"""The further graphs of detectors that look twice: of regions, after a first graph has seen the whole image.

Which regions are looked at depends on values, so that the program around the graphs chooses them: in `exports/model.py`
as the detector itself does, in run.py by a few lines of numpy. Faster and Mask R-CNN take as many regions as there are,
sorted by the level that suits their size. Sparse R-CNN has its own boxes, and is told the image's size without padding.

Shapes: R regions of one image, K classes, M side of a mask, L levels, N learned boxes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.exports.graph import FreeAxes
from vitreous.exports.outputs import BOXES, MASKS, SCORES, NamedOutputs, map_names
from vitreous.heads.regions import region_levels
from vitreous.heads.sparse_rcnn import SparseRCNN
from vitreous.heads.two_stage import RCNN

SIZE = "size"


class RegionGraph(nn.Module, ABC):
    """One image's maps (1, C, h, w) of all levels, and what is asked about them -> a tuple, as `outputs` names it."""

    name: str  # of its file
    outputs: tuple[str, ...]
    asked: tuple[str, ...]  # the inputs behind the maps

    def __init__(self, model: Any, strides: Sequence[int]) -> None:
        super().__init__()
        self.model, self.strides = model, tuple(strides)
        self.eval()

    @property
    def inputs(self) -> tuple[str, ...]:
        return (*map_names(len(self.strides)), *self.asked)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.answers(list(inputs[: len(self.strides)]), list(inputs[len(self.strides) :]))

    @abstractmethod
    def answers(self, maps: list[Tensor], asked: list[Tensor]) -> tuple[Tensor, ...]: ...

    @abstractmethod
    def question(self, height: int, width: int) -> tuple[Tensor, ...]:
        """What could be asked about an image of this size, as an example and to compare answers."""

    def of(self, first: NamedOutputs, height: int, width: int) -> tuple[Tensor, ...]:
        """Its inputs for the first image of those that the first graph has seen."""
        maps = (first[name][:1] for name in map_names(len(self.strides)))
        return *maps, *self.question(height, width)

    def axes(self, *, dynamic: bool) -> tuple[FreeAxes, ...]:
        maps = ({2: f"height{i}", 3: f"width{i}"} if dynamic else {} for i in range(1, len(self.strides) + 1))
        return *maps, *self.asked_axes()

    def asked_axes(self) -> tuple[FreeAxes, ...]:
        return tuple({} for _ in self.asked)


class OfRegions(RegionGraph):
    def __init__(self, model: Any, strides: Sequence[int]) -> None:
        super().__init__(model, strides)
        self.asked = region_names(len(strides))

    def asked_axes(self) -> tuple[FreeAxes, ...]:
        return tuple({0: f"count_of_{name}"} for name in self.asked)

    def question(self, height: int, width: int) -> tuple[Tensor, ...]:
        """Boxes (n, 4) of every level: somewhere, some of them at the edge and beyond, and the whole image."""
        drawn = torch.Generator().manual_seed(0)
        found = []
        for number in range(len(self.strides)):
            ends = torch.rand(5 + 2 * number, 2, 2, generator=drawn) * 1.4 - 0.2
            ends = ends * torch.tensor([width, height])  # (n, 2, 2)
            whole = torch.tensor([[0.0, 0.0, width, height]])
            found.append(torch.cat([ends.amin(1), ends.amax(1)], 1))
            found[-1] = torch.cat([found[-1], whole])
        return tuple(found)


class JudgedRegions(OfRegions):
    """Scores (R, K) and boxes (R, K, 4)."""

    name, outputs = "regions", (SCORES, BOXES)

    def answers(self, maps: list[Tensor], asked: list[Tensor]) -> tuple[Tensor, ...]:
        return self.model.judged(maps, asked)


class OutlinedRegions(OfRegions):
    """Probabilities (R, K, M, M) within the boxes."""

    name, outputs = "masks", (MASKS,)

    def answers(self, maps: list[Tensor], asked: list[Tensor]) -> tuple[Tensor, ...]:
        return (self.model.outlined(maps, asked),)


class RefinedBoxes(RegionGraph):
    """Scores (N, K) and boxes (N, 4) of Sparse R-CNN; `size` (2,): height and width of the image without padding."""

    name, outputs, asked = "regions", (SCORES, BOXES), (SIZE,)

    def answers(self, maps: list[Tensor], asked: list[Tensor]) -> tuple[Tensor, ...]:
        logits, boxes = self.model.refined(maps, asked[0][None])[-1]
        return logits[0].sigmoid(), boxes[0]

    def question(self, height: int, width: int) -> tuple[Tensor, ...]:
        return (torch.tensor([height - 8.0, width - 3.0]),)


def region_graphs(model: nn.Module) -> tuple[RegionGraph, ...]:
    """What follows the first graph of a detector; nothing for most models."""
    if isinstance(model, SparseRCNN):
        return (RefinedBoxes(model, model.align.strides),)
    if not isinstance(model, RCNN):
        return ()
    strides = model.box_align.strides
    masks = () if model.mask_head is None else (OutlinedRegions(model, strides),)
    return JudgedRegions(model, strides), *masks


def region_names(levels: int) -> tuple[str, ...]:
    return tuple(f"regions{number}" for number in range(1, levels + 1))


def by_level(boxes: Tensor, strides: Sequence[int]) -> tuple[list[Tensor], Tensor]:
    """Boxes (R, 4) of each level, and where in their sequence each of the given ones went (R,)."""
    level = region_levels(boxes, strides)
    order = level.argsort(stable=True)
    counts = torch.bincount(level, minlength=len(strides)).tolist()
    return list(boxes[order].split(counts)), order.argsort()
