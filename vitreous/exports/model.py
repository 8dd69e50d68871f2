"""Modules around a session, so that whoever asks a model can ask an exported one.

They have no gradients and no layers to look into, only the maps that were exported: taps at the same paths as in the
model hand these out.

Shapes: B images, K classes, A places that a detector looks at.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import InputError
from vitreous.exports.outputs import BOXES, EXPLANATION, HEATMAPS, LOGITS, MASKS, OBJECTNESS, SCORES, map_names
from vitreous.exports.regions import JudgedRegions, OutlinedRegions, RefinedBoxes, by_level
from vitreous.exports.session import Session
from vitreous.heads.boxes import Candidates, Detector, GroundTruth, Selection, Shape, blank_padding
from vitreous.heads.regions import likeliest_boxes
from vitreous.heads.segment import Segmenter
from vitreous.heads.semantic import DecoderOutput
from vitreous.layers.tap import Tap

Sessions = Mapping[str, Session]  # of further graphs by name
# What each kind of detector must be told about choosing its boxes.
BOX_CHOICES = {
    "detect": {*Selection._fields, "strides", "counts"},
    "refine": {*Selection._fields, "strides", "counts", "align"},
    "propose": {*Selection._fields, "strides", "counts", "align", "per_level", "proposals"},
}
NOT_LEARNING = "an exported model cannot learn; train the run it was exported from, and export it again"


class ExportedModel(nn.Module):
    """Base of models that are run by another program, or by torch from a graph."""

    differentiable = False  # methods that need gradients look here
    session: Session
    maps: tuple[str, ...]
    digest: str = ""  # of the files it is read from, which tells it from others as weights do elsewhere

    def attach(self, session: Session, maps: Sequence[str]) -> None:
        self.session, self.maps = session, tuple(maps)
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)  # tells the device, as weights do elsewhere
        for name in maps:
            add_tap(self, name)
        self.eval()

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """By name, on the device of the images; maps pass the taps of their names."""
        found = self.session(images.detach().float().cpu().numpy())
        named = {name: torch.from_numpy(values).to(images.device) for name, values in found.items()}
        for name in self.maps:
            named[name] = self.get_submodule(name)(named[name])
        return named


def add_tap(model: nn.Module, path: str) -> None:
    """A tap at the path that it had in the exported model; what is on the way holds nothing else."""
    *holders, last = path.split(".")
    place = model
    for name in holders:
        if name not in dict(place.named_children()):
            place.add_module(name, nn.ModuleDict())
        place = place.get_submodule(name)
    place.add_module(last, Tap())


class ExportedClassifier(ExportedModel):
    """Images (B, 3, H, W) -> logits (B, K)."""

    def __init__(self, session: Session, maps: Sequence[str], classes: int) -> None:
        super().__init__()
        self.num_classes = classes
        self.pretrained_cfg: dict[str, Any] = {}
        self.attach(session, maps)

    def forward(self, images: Tensor) -> Tensor:
        return self.outputs(images)[LOGITS]

    @property
    def explains(self) -> bool:
        """Whether the graph holds a learned explainer."""
        return EXPLANATION in self.session.names

    def explanation(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The explainer's maps (B, h, w), and the classes (B,) they are of: the likeliest."""
        found = self.outputs(images)
        return found[EXPLANATION], found[LOGITS].argmax(1)


class ExportedSegmenter(ExportedModel, Segmenter):
    def __init__(self, session: Session, maps: Sequence[str]) -> None:
        nn.Module.__init__(self)
        self.attach(session, maps)

    def output(self, images: Tensor, *, auxiliary: bool = True) -> DecoderOutput:
        return DecoderOutput(self.outputs(images)[LOGITS])


class ExportedKeypoints(ExportedModel):
    """Crops (B, 3, H, W) -> heat maps (B, joints, H / 4, W / 4)."""

    def __init__(self, session: Session, maps: Sequence[str]) -> None:
        super().__init__()
        self.attach(session, maps)

    def forward(self, images: Tensor) -> Tensor:
        return self.outputs(images)[HEATMAPS]


class ExportedDetector(ExportedModel, Detector):
    """Chooses among the scores and boxes of the graph as the detector itself would."""

    def __init__(self, session: Session, maps: Sequence[str], choice: Mapping[str, Any]) -> None:
        nn.Module.__init__(self)
        self.selection = Selection(**{name: choice[name] for name in Selection._fields})
        self.strides, self.counts = tuple(choice["strides"]), tuple(choice["counts"])
        self.attach(session, maps)

    def pyramid(self, images: Tensor, sizes: Tensor | None) -> list[Tensor]:
        """In place of features: scores, boxes, and how many of them belong to each level."""
        found = self.outputs(images if sizes is None else blank_padding(images, sizes))
        height, width = images.shape[2:]
        levels = level_lengths(height, width, self.strides, self.counts) or (found[SCORES].shape[1],)
        return [found[SCORES], found[BOXES], torch.tensor(levels)]

    def considered(self, features: list[Tensor], shapes: list[Shape]) -> list[Candidates]:
        scores, boxes, levels = features
        lengths = tuple(levels.tolist())
        return [
            Candidates(score, lambda rows, labels, box=box: box[rows], lengths)  # type: ignore[misc]
            for score, box in zip(scores, boxes, strict=True)
        ]

    def losses(self, features: list[Tensor], shapes: list[Shape], objects: list[GroundTruth]) -> dict[str, Tensor]:
        raise InputError(NOT_LEARNING)

    def raw(self, images: Tensor) -> Any:
        return self.outputs(images)


class ExportedRegions(ExportedDetector):
    """Base of detectors that look at regions of the maps, one image after the other."""

    def __init__(self, session: Session, maps: Sequence[str], choice: Mapping[str, Any], later: Sessions) -> None:
        super().__init__(session, maps, choice)
        self.align, self.later = tuple(choice["align"]), later

    def pyramid(self, images: Tensor, sizes: Tensor | None) -> list[Tensor]:
        """The maps that regions are taken from, fine to coarse."""
        found = self.outputs(images if sizes is None else blank_padding(images, sizes))
        return [found[name] for name in map_names(len(self.align))]

    def asked(self, graph: str, maps: Sequence[Tensor], image: int, *questions: Tensor) -> dict[str, Tensor]:
        """What a further graph says about one image."""
        inputs = (*(each[image : image + 1] for each in maps), *questions)
        found = self.later[graph].answers(*(each.detach().float().cpu().numpy() for each in inputs))
        return {name: torch.from_numpy(values).to(maps[0].device) for name, values in found.items()}


class ExportedRefiner(ExportedRegions):
    """Sparse R-CNN."""

    def considered(self, features: list[Tensor], shapes: list[Shape]) -> list[Candidates]:
        found = []
        for image, shape in enumerate(shapes):
            answers = self.asked(RefinedBoxes.name, features, image, torch.tensor(shape))
            scores, boxes = answers[SCORES], answers[BOXES]
            found.append(Candidates(scores, lambda rows, labels, boxes=boxes: boxes[rows], (len(scores),)))  # type: ignore[misc]
        return found


class ExportedRCNN(ExportedRegions):
    """Faster R-CNN and Mask R-CNN."""

    def __init__(self, session: Session, maps: Sequence[str], choice: Mapping[str, Any], later: Sessions) -> None:
        super().__init__(session, maps, choice, later)
        self.per_level, self.proposals = choice["per_level"], choice["proposals"]

    def pyramid(self, images: Tensor, sizes: Tensor | None) -> list[Tensor]:
        """In place of features: objectness and boxes of every anchor, how many belong to each level, and the maps."""
        found = self.outputs(images if sizes is None else blank_padding(images, sizes))
        height, width = images.shape[2:]
        levels = level_lengths(height, width, self.strides, self.counts)
        maps = (found[name] for name in map_names(len(self.align)))
        return [found[OBJECTNESS], found[BOXES], torch.tensor(levels), *maps]

    def considered(self, features: list[Tensor], shapes: list[Shape]) -> list[Candidates]:
        objectness, boxes, levels, *maps = features
        lengths = levels.tolist()
        level_boxes = boxes.split(lengths, 1)

        def boxes_at(level: int, index: Tensor) -> Tensor:
            return level_boxes[level].gather(1, index[:, :, None].expand(-1, -1, 4))

        proposed = likeliest_boxes(objectness.split(lengths, 1), boxes_at, shapes, self.per_level, self.proposals)
        return [self.judged(maps, image, regions) for image, regions in enumerate(proposed)]

    def judged(self, maps: Sequence[Tensor], image: int, regions: Tensor) -> Candidates:
        answers = self.of_regions(JudgedRegions.name, maps, image, regions)
        scores, boxes = answers[SCORES], answers[BOXES]
        return Candidates(scores, lambda rows, labels: boxes[rows, labels], (len(scores),))

    def of_regions(self, graph: str, maps: Sequence[Tensor], image: int, regions: Tensor) -> dict[str, Tensor]:
        """Answers in the order of the regions."""
        parts, order = by_level(regions, self.align)
        return {name: values[order] for name, values in self.asked(graph, maps, image, *parts).items()}

    def predictions(self, features: list[Tensor], shapes: list[Shape]) -> list[dict[str, Tensor]]:
        found = super().predictions(features, shapes)
        for image, one in enumerate(found if OutlinedRegions.name in self.later else ()):
            masks = self.of_regions(OutlinedRegions.name, features[3:], image, one["boxes"])[MASKS]
            one["masks"] = masks[torch.arange(len(masks), device=masks.device), one["labels"]]
        return found


def level_lengths(height: int, width: int, strides: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    """How many places of a detector belong to each of its levels, whose sides are rounded up."""
    return tuple(
        -(-height // stride) * -(-width // stride) * count for stride, count in zip(strides, counts, strict=True)
    )


def box_choice(model: Any, kind: str) -> dict[str, Any]:
    """How a detector chooses among its boxes, for those who do it without it; nothing for other models."""
    if kind not in BOX_CHOICES:
        return {}
    kept: dict[str, Any] = model.selection._asdict()
    if kind == "refine":
        return kept | {"strides": [], "counts": [], "align": model.align.strides}
    if kind == "propose":
        own = {"per_level": model.proposals.candidates[1], "proposals": model.proposals.proposals}
        kept |= own | {"align": model.box_align.strides}
    anchors = model.anchors if kind == "detect" else model.proposals.anchors
    by_level = not anchors.even  # those that divide the image evenly are chosen from all levels at once
    return kept | {"strides": list(anchors.strides) if by_level else [], "counts": anchors.counts if by_level else []}


def exported_model(
    kind: str, session: Session, maps: Sequence[str], classes: int, choice: Mapping[str, Any], later: Sessions
) -> ExportedModel:
    """The module for a graph of this kind, and for those that follow it."""
    if kind == "classify":
        return ExportedClassifier(session, maps, classes)
    if kind == "segment":
        return ExportedSegmenter(session, maps)
    if kind == "keypoints":
        return ExportedKeypoints(session, maps)
    if kind == "propose":
        return ExportedRCNN(session, maps, choice, later)
    if kind == "refine":
        return ExportedRefiner(session, maps, choice, later)
    assert kind == "detect"
    return ExportedDetector(session, maps, choice)
