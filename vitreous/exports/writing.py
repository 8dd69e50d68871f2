"""From a model to a written graph, and how far the graph's answers are from the model's."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from vitreous.errors import InputError
from vitreous.exports.folder import GraphFacts, Ports
from vitreous.exports.graph import IMAGES, FreeAxes, export_onnx, export_openvino, traced_program
from vitreous.exports.model import level_lengths
from vitreous.exports.outputs import BOXES, GraphModel
from vitreous.exports.regions import RegionGraph
from vitreous.exports.session import FILES, GRAPH_SUFFIXES, PACKAGES_TOLD, Session
from vitreous.files.writing import open_for_writing
from vitreous.heads.boxes import Anchors
from vitreous.heads.pyramid import Levels
from vitreous.models.base import Backbone

Size = tuple[int, int]  # height, width
Later = Sequence[tuple[RegionGraph, Session]]  # further graphs: as they are, and as they were written
FRAME = 32  # sides of images grow by multiples of it, so that every stride of a pyramid divides them
# Largest difference that is rounding, as a share of the largest value of an output; a wrong graph is far above.
MOST_DIFFERENCE = 1e-3


class Compared(NamedTuple):
    """A graph beside the model it was made of, on the same images."""

    shape: tuple[int, ...]
    difference: float  # the largest of all numbers of all outputs
    relative: float  # the same as a share of its output's largest number


def write_graph(model: GraphModel, to: str, size: Size, folder: Path, *, dynamic: bool) -> tuple[str, ...]:
    """Write the graph into a folder; returns the names of its outputs."""
    natural = torch.zeros(1, 3, *size)
    example = torch.zeros(2, 3, *free_size(model, size)) if dynamic else natural
    with torch.no_grad(), quiet_warnings():
        names = tuple(model.named(natural))
        _write(model, example, folder / FILES[to][0], dynamic, IMAGES, names)
    return names


def write_later(
    graphs: Sequence[RegionGraph], first: GraphModel, to: str, size: Size, folder: Path, *, dynamic: bool
) -> dict[str, Ports]:
    """Write the graphs that follow the first into its folder; what they take and give by name."""
    height, width = free_size(first, size) if dynamic else size
    with torch.no_grad(), quiet_warnings():
        seen = first.named(torch.zeros(1, 3, height, width)) if graphs else {}
        for graph in graphs:
            path = folder / f"{graph.name}{GRAPH_SUFFIXES[to][0]}"
            example, axes = graph.of(seen, height, width), graph.axes(dynamic=dynamic)
            _write(graph, example, path, axes, graph.inputs, graph.outputs)
    return {graph.name: Ports(graph.inputs, graph.outputs) for graph in graphs}


def _write(
    model: nn.Module,
    example: Tensor | Sequence[Tensor],
    path: Path,
    dynamic: bool | Sequence[FreeAxes],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> None:
    if path.suffix in GRAPH_SUFFIXES["torch"]:
        return write_program(traced_program(model, example, dynamic=dynamic), path)
    write = export_onnx if path.suffix in GRAPH_SUFFIXES["onnx"] else export_openvino
    return write(model, example, path, dynamic=dynamic, input_names=inputs, output_names=outputs)


def write_program(program: ExportedProgram, path: Path) -> None:
    """By way of memory: on a full disk torch's own writer ends the process."""
    content = io.BytesIO()
    torch.export.save(program, content)
    with open_for_writing(path, "w", binary=True) as file:
        file.write(content.getbuffer())


def free_size(model: GraphModel, size: Size) -> Size:
    """Height and width of an example for a graph of any size.

    Torch takes two sides that are equal for the same side, and a side of one for a constant: they differ, and every map
    has two positions or more.
    """
    strides = [max(part.strides) for part in model.modules() if isinstance(part, Anchors | Backbone | Levels)]
    least = 2 * max(strides, default=FRAME)
    height = max(size[0], least)
    return height, max(size[1], height) + FRAME


@contextmanager
def quiet_warnings() -> Iterator[None]:
    """Exporters warn about their own future."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compared_sizes(size: Size, *, dynamic: bool) -> list[tuple[int, ...]]:
    """Shapes of images on which a graph is compared: its own, and two others where it takes them."""
    height, width = size
    if not dynamic:
        return [(1, 3, height, width)]
    return [
        (1, 3, height, width),
        (2, 3, height + FRAME, width + 2 * FRAME),
        (3, 3, height + 2 * FRAME, width),
    ]


@torch.no_grad()
def compare(
    model: GraphModel, session: Session, shapes: Sequence[tuple[int, ...]], later: Later = ()
) -> list[Compared]:
    """The graphs and the model on the same random images of every shape."""
    found = []
    for number, shape in enumerate(shapes):
        images = torch.randn(shape, generator=torch.Generator().manual_seed(number))
        answers = session(images.numpy())
        seen = model.named(images)
        pairs = [(values, torch.from_numpy(answers[name])) for name, values in seen.items()]
        for graph, following in later:
            inputs = graph.of(seen, *shape[2:])
            given = following.answers(*(each.numpy() for each in inputs)).values()
            pairs += zip(graph(*inputs), map(torch.from_numpy, given), strict=True)
        found.append(Compared(shape, max(map(_gap, pairs)), max(_gap(pair) / _scale(pair[0]) for pair in pairs)))
    return found


def _gap(pair: tuple[Tensor, Tensor]) -> float:
    ours, theirs = pair
    if ours.shape != theirs.shape:
        return float("inf")
    gap = (ours - theirs).abs().max().item() if ours.numel() else 0.0
    return gap if gap == gap else float("inf")  # NaN


def _scale(values: Tensor) -> float:
    return max(values.abs().max().item(), 1e-6) if values.numel() else 1.0


def agreeing(
    form: GraphModel, session: Session, facts: GraphFacts, shapes: Sequence[tuple[int, ...]], later: Later = ()
) -> tuple[Compared, ...]:
    """The graph, and those that follow it, compared with the model; one that answers differently is refused."""
    found = tuple(compare(form, session, shapes, later))
    for one in found if facts.precision == "fp32" else ():
        if one.relative > MOST_DIFFERENCE:
            raise InputError(
                f"the graph for {PACKAGES_TOLD[facts.to]} does not answer as the model does: on images of "
                f"{by_sides(one.shape)} the largest difference is {one.difference:.3g}, {one.relative:.1%} of the "
                "largest value; nothing was written. Try another --to, or --static"
            )
    if facts.choice.get("strides"):
        height, width = shapes[0][2:]
        places = session(torch.zeros(shapes[0]).numpy())[BOXES].shape[1]
        if places != sum(level_lengths(height, width, facts.choice["strides"], facts.choice["counts"])):
            raise InputError(
                f"this backbone rounds the sides of its maps down, so the {places} places of its detector cannot be "
                "told apart outside of it; export a model with one of our backbones (vitreous info)"
            )
    return found


def by_sides(shape: Sequence[int | None]) -> str:
    return "x".join(map(str, shape))
