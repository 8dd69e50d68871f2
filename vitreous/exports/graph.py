"""A model as a graph for ONNX Runtime or OpenVINO.

torch.export follows the model once, with an example; what comes out is translated. A static graph takes inputs of the
example's shape and is the fastest. A dynamic one takes any batch, height and width: OpenVINO can make it static again
for a size at hand (`model.reshape`), which gives back nearly all of the speed.
"""

import errno
import importlib.util
import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitreous.errors import InputError, to_install_extra
from vitreous.exports.layout import in_one_layout
from vitreous.files.reading import reason_of

if TYPE_CHECKING:
    import openvino

IMAGES = ("images",)
FreeAxes = Mapping[int, str]  # of an input, those of any size, with names
AXES: FreeAxes = {0: "batch", 2: "height", 3: "width"}  # of an input (B, C, H, W) that may be of any size
PACKAGES = {"onnx": ("onnx", "onnxscript"), "onnxruntime": ("onnxruntime",), "openvino": ("openvino",)}


def require_packages(*formats: str) -> None:
    """Say before the work what is missing to write or run these: onnx, onnxruntime, openvino."""
    needed = [package for name in formats for package in PACKAGES[name]]
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    if missing:
        raise InputError(f"this needs the package {' and '.join(missing)}: {to_install_extra('export')}")


def export_onnx(
    model: nn.Module,
    example: Tensor | Sequence[Tensor],
    path: Path,
    *,
    dynamic: bool | Sequence[FreeAxes] = False,
    input_names: Sequence[str] = IMAGES,
    output_names: Sequence[str] | None = None,
) -> None:
    """Write an ONNX file, not atomically: `path` belongs into a folder that is published as a whole.

    Args:
        model: Takes the example's tensors and gives a tensor, or a list, tuple or dict of tensors, which the graph
            gives in the same order. It is not changed.
        example: One input (B, C, H, W) or several.
        dynamic: Let batch, height and width of all inputs be of any size; the example's batch must be above 1. Or which
            axes of each input.
        input_names: One for each input.
        output_names: One for each output; as torch names them by default.
    """
    require_packages("onnx")
    program, free = traced_program(model, example, dynamic=dynamic), free_axes(example, dynamic)
    with _explained("ONNX"), _quiet("torch.onnx", "onnxscript", "onnx_ir"):
        graph = torch.onnx.export(
            in_one_layout(program, norms=False),  # ONNX Runtime has a LayerNorm of tokens, and none of maps
            dynamo=True,
            verbose=False,
            input_names=list(input_names),
            output_names=None if output_names is None else list(output_names),
            dynamic_shapes=tuple(map(dict, free)) if any(free) else None,  # for their names only
            external_data=False,
        )
    assert graph is not None
    graph.save(str(path))  # what fails now is the disk


def export_openvino(
    model: nn.Module,
    example: Tensor | Sequence[Tensor],
    path: Path,
    *,
    dynamic: bool | Sequence[FreeAxes] = False,
    input_names: Sequence[str] = IMAGES,
    output_names: Sequence[str] | None = None,
) -> None:
    """Write `path`, which ends in .xml, and its weights beside it as .bin; otherwise like `export_onnx`."""
    graph = openvino_graph(model, example, dynamic=dynamic, input_names=input_names, output_names=output_names)
    import openvino

    try:
        openvino.save_model(graph, str(path), compress_to_fp16=False)
    except RuntimeError as reason:  # it does not say what the disk said
        raise OSError(errno.EIO, f"OpenVINO could not write it ({reason_of(reason)})", str(path)) from reason


def openvino_graph(
    model: nn.Module,
    example: Tensor | Sequence[Tensor],
    *,
    dynamic: bool | Sequence[FreeAxes] = False,
    input_names: Sequence[str] = IMAGES,
    output_names: Sequence[str] | None = None,
) -> "openvino.Model":
    """A model of OpenVINO, ready to be compiled; arguments as for `export_onnx`."""
    require_packages("openvino")
    import openvino

    program = traced_program(model, example, dynamic=dynamic)
    with _explained("OpenVINO"):
        graph = openvino.convert_model(in_one_layout(program))
        # OpenVINO takes static programs for dynamic ones.
        shapes = [
            [-1 if axis in free else size for axis, size in enumerate(each.shape)]
            for each, free in zip(as_inputs(example), free_axes(example, dynamic), strict=True)
        ]
        graph.reshape({port: openvino.PartialShape(shape) for port, shape in zip(graph.inputs, shapes, strict=True)})
    for port, name in zip(graph.inputs, input_names, strict=True):
        port.get_tensor().set_names({name})
    for port, name in zip(graph.outputs, output_names or (), strict=output_names is not None):
        port.get_tensor().set_names({name})
    return graph


def traced_program(
    model: nn.Module, example: Tensor | Sequence[Tensor], *, dynamic: bool | Sequence[FreeAxes] = False
) -> ExportedProgram:
    """The program that torch.export makes of a model, which is not changed."""
    inputs = as_inputs(example)
    free = free_axes(example, dynamic)
    shapes = tuple(dict.fromkeys(axes, Dim.DYNAMIC) for axes in free)
    if any(0 in axes and len(each) < 2 for axes, each in zip(free, inputs, strict=True)):
        raise InputError(f"an example of batch {len(inputs[0])} given for any batch size; give one of two or more")
    with _explained("a graph"), torch.no_grad():
        # Inputs that are gathered, as by forward(*inputs), are one argument to torch.
        gathered = any(one.kind is one.VAR_POSITIONAL for one in inspect.signature(model.forward).parameters.values())
        told = (shapes,) if gathered else shapes
        return torch.export.export(deepcopy(model).eval(), inputs, dynamic_shapes=told if any(free) else None)


def free_axes(example: Tensor | Sequence[Tensor], dynamic: bool | Sequence[FreeAxes]) -> tuple[FreeAxes, ...]:
    """Of each input the axes of any size."""
    if isinstance(dynamic, bool):
        return tuple(AXES if dynamic else {} for _ in as_inputs(example))
    return tuple(dynamic)


def as_inputs(example: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (example,) if isinstance(example, Tensor) else tuple(example)


@contextmanager
def _explained(target: str) -> Iterator[None]:
    """Say in one line that something in a model has no translation."""
    try:
        yield
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as reason:  # exporters have many ways to say no
        raise InputError(f"this model cannot be turned into {target} ({reason_of(reason)})") from reason


@contextmanager
def _quiet(*loggers: str) -> Iterator[None]:
    """Keep what a translator tells about its own work off the terminal."""
    kept: list[tuple[Any, int]] = [(logging.getLogger(name), logging.getLogger(name).level) for name in loggers]
    for logger, _ in kept:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in kept:
            logger.setLevel(level)
