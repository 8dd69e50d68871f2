"""Candidates: what the maps of a data set point at often, at the same place or with the same look.

They are only proposals. What a candidate does is measured on other pictures than those that proposed it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.clusters.layer import Layer
from vitreous.data.regions import Box
from vitreous.files.reading import truncate
from vitreous.suspects.changes import Alike, Background, Change, Gate, PictureTint, Place
from vitreous.suspects.gathering import GRID_CELLS, Evidence
from vitreous.suspects.looks import Look, grouped

MOST_PLACES, MOST_OF_CLASSES, MOST_LOOKS, MOST_CLUSTERS = 3, 2, 2, 4
LARGEST_BOX = GRID_CELLS  # cells: as large as objects, and a box may hold the whole object of a picture
SMALL_BOX = 4  # cells, up to which a box gets a margin
LOWER = 0.6  # of a peak's height, above which its neighbours belong to it
OFTEN = 0.1  # share of the pictures in which a cell must matter to be a peak
FEWEST_OF_CLASS = 8  # pictures with an answer, for a place of its own
LOOK_GROUPS = 12
LIFT = 3.0  # times as often with an answer as in all pictures, for a look
FEWEST_OF_LOOK = 12  # cells
SAME_PLACE = 0.3  # IoU of two boxes that are one candidate


@dataclass(frozen=True)
class Candidate:
    kind: str  # place, look, colour, background or cluster
    name: str  # in words
    change: Change
    box: Box | None = None
    proposed_by: str = ""  # in words


def propose(evidence: Evidence, classes: tuple[str, ...], layer: Layer | None) -> list[Candidate]:
    usual = evidence.colour / evidence.pictures.sum().clamp_min(1)
    found = [
        Candidate("colour", "the colour of the whole picture", PictureTint(usual), None, "tried with every model"),
        Candidate("background", "the background", Background(), (0.0, 0.0, 1.0, 1.0), "tried with every model"),
    ]
    found += place_candidates(evidence, classes)
    found += look_candidates(evidence, classes)
    return found + ([] if layer is None else cluster_candidates(evidence, layer))


def place_candidates(evidence: Evidence, classes: tuple[str, ...]) -> list[Candidate]:
    """Boxes around the places that matter most often: to all answers, to wrong ones, to those of one class."""
    pictures = evidence.pictures.sum().clamp_min(1)
    sources = [("all answers", evidence.used.sum(0) / pictures, MOST_PLACES)]
    if evidence.wrong >= FEWEST_OF_CLASS:
        sources.append(("wrong answers", evidence.used_wrongly / evidence.wrong, 1))
    often = (evidence.pictures >= FEWEST_OF_CLASS).nonzero().flatten().tolist()
    by_class = {k: evidence.used[k] / evidence.pictures[k] for k in often}
    first = sorted(often, key=lambda k: -float((by_class[k] - sources[0][1]).max()))[:MOST_OF_CLASSES]
    sources += [(f"answers {classes[k]}", by_class[k], 1) for k in first]
    found: list[Candidate] = []
    for source, often_used, most in sources:
        for box in [with_margin(box) for box in boxes(often_used)][:most]:
            if all(box_iou(box, other.box) < SAME_PLACE for other in found if other.box is not None):
                found.append(Candidate("place", place_in_words(box), Place(box), box, f"the maps of {source}"))
    return found


def boxes(often_used: Tensor) -> Iterator[Box]:
    """Around each peak of (G, G), the highest first: its neighbours of nearly the same height, as far as they fit."""
    left = often_used.clone()
    while float(left.max()) >= OFTEN:
        row, column = divmod(int(left.argmax()), GRID_CELLS)
        top, bottom, start, end = row, row + 1, column, column + 1
        least = LOWER * float(left[row, column])
        while grown := best_side(often_used, (top, bottom, start, end), least):
            top, bottom, start, end = grown
        left[top:bottom, start:end] = 0
        yield start / GRID_CELLS, top / GRID_CELLS, end / GRID_CELLS, bottom / GRID_CELLS


def with_margin(box: Box) -> Box:
    """A small box with half a cell around it: a mark ends where it likes, and a strip of it left over still tells."""
    if box_area(box) > SMALL_BOX / GRID_CELLS**2:
        return box
    half = 0.5 / GRID_CELLS
    left, top, right, bottom = box
    return max(left - half, 0.0), max(top - half, 0.0), min(right + half, 1.0), min(bottom + half, 1.0)


Cells = tuple[int, int, int, int]  # top, bottom, left, right


def best_side(often_used: Tensor, box: Cells, least: float) -> Cells | None:
    """The box with one more row or column, the highest of those that are high enough; None if none is."""
    top, bottom, left, right = box
    grown = {
        (top - 1, bottom, left, right): (slice(top - 1, top), slice(left, right)),
        (top, bottom + 1, left, right): (slice(bottom, bottom + 1), slice(left, right)),
        (top, bottom, left - 1, right): (slice(top, bottom), slice(left - 1, left)),
        (top, bottom, left, right + 1): (slice(top, bottom), slice(right, right + 1)),
    }
    inside = {
        cells: float(often_used[part].mean())
        for cells, part in grown.items()
        if min(cells) >= 0 and max(cells) <= GRID_CELLS and (cells[1] - cells[0]) * (cells[3] - cells[2]) <= LARGEST_BOX
    }
    best = max(inside, key=lambda cells: inside[cells], default=None)
    return best if best is not None and inside[best] >= least else None


def look_candidates(evidence: Evidence, classes: tuple[str, ...]) -> list[Candidate]:
    """Groups of cells that look alike and go with one answer far more often than other cells do."""
    if len(evidence.looks) < 2 * FEWEST_OF_LOOK:
        return []
    scale = evidence.looks.std(0).clamp_min(1e-6)
    centres, group = grouped(evidence.looks / scale, LOOK_GROUPS)
    usual = evidence.pictures / evidence.pictures.sum().clamp_min(1)
    found = []
    for number, centre in enumerate(centres):
        own = group == number
        if int(own.sum()) < FEWEST_OF_LOOK:
            continue
        counted = torch.bincount(evidence.answers[own], minlength=len(usual)) / own.sum()
        answer = int((counted / usual.clamp_min(1e-3)).argmax())
        lift = float(counted[answer] / usual[answer].clamp_min(1e-3))
        if lift >= LIFT and counted[answer] >= 0.5:
            distance = (evidence.looks[own] / scale - centre).norm(dim=1)
            look = Look(centre, float(distance.quantile(0.8)), GRID_CELLS, scale)
            cell = int(evidence.cells[own].mode().values)
            box = cell_box(cell)
            found.append(
                (lift, Candidate("look", look_in_words(classes[answer]), Alike(look), box, "what the maps point at"))
            )
    found.sort(key=lambda entry: -entry[0])
    return [candidate for _, candidate in found[:MOST_LOOKS]]


def look_in_words(answer: str) -> str:
    return f"parts that look alike and go with {truncate(answer)}"


def cluster_candidates(evidence: Evidence, layer: Layer) -> list[Candidate]:
    """Clusters that look at the same place in all pictures, the most concentrated first."""
    mean = evidence.clusters / evidence.clusters.sum((1, 2), keepdim=True).clamp_min(1e-12)  # (M, G, G)
    order = mean.flatten(1).amax(1).argsort(descending=True).tolist()
    found = []
    for number in order[:MOST_CLUSTERS]:
        box = next(boxes(mean[number] / mean[number].max()))
        name = f"cluster {number}, which looks most at the {place_in_words(box)}"
        found.append(Candidate("cluster", name, Gate(layer, number, len(mean)), box, f"{layer.name}"))
    return found


def cell_box(cell: int) -> Box:
    row, column = divmod(cell, GRID_CELLS)
    return column / GRID_CELLS, row / GRID_CELLS, (column + 1) / GRID_CELLS, (row + 1) / GRID_CELLS


def box_area(box: Box) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def box_iou(box: Box, other: Box) -> float:
    both = box_overlap(box, other)
    return both / (box_area(box) + box_area(other) - both)


def box_overlap(box: Box, other: Box) -> float:
    """Area that two boxes share."""
    return box_area((max(box[0], other[0]), max(box[1], other[1]), min(box[2], other[2]), min(box[3], other[3])))


def place_in_words(box: Box) -> str:
    """Where a box is: upper left corner, bottom edge, centre."""
    left, top, right, bottom = box
    if right - left >= 0.75 and bottom - top >= 0.75:
        return "whole picture"
    down = "upper" if (top + bottom) / 2 < 1 / 3 else "lower" if (top + bottom) / 2 > 2 / 3 else ""
    across = "left" if (left + right) / 2 < 1 / 3 else "right" if (left + right) / 2 > 2 / 3 else ""
    if right - left >= 0.75:
        return {"upper": "top edge", "lower": "bottom edge"}.get(down, "band across the middle")
    if bottom - top >= 0.75:
        return f"{across} edge" if across else "upright band in the middle"
    corner = (left < 0.05 or right > 0.95) and (top < 0.05 or bottom > 0.95)
    if down and across:
        return f"{down} {across} {'corner' if corner else 'part'}"
    edge = {"upper": top < 0.05, "lower": bottom > 0.95, "left": left < 0.05, "right": right > 0.95}
    side = down or across
    return f"middle of the {side} {'edge' if edge[side] else 'half'}" if side else "centre"
