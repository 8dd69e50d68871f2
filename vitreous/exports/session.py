"""A written graph, loaded again by the program it was written for: arrays in, arrays by name out."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.errors import InputError
from vitreous.exports.graph import IMAGES, require_packages
from vitreous.files.reading import reason_of

Array = NDArray[np.float32]
GRAPH_SUFFIXES = {"onnx": (".onnx",), "openvino": (".xml", ".bin"), "torch": (".pt2",)}  # of each target
FILES = {to: tuple(f"model{suffix}" for suffix in suffixes) for to, suffixes in GRAPH_SUFFIXES.items()}
RUNTIMES = {"onnx": "onnxruntime", "openvino": "openvino", "torch": None}  # what `require_packages` calls it
PACKAGES_TOLD = {"onnx": "onnxruntime", "openvino": "openvino", "torch": "torch"}  # that run the graph
InputShapes = tuple[tuple[str, tuple[int, ...]], ...]  # of inputs by name
MOST_SHAPES = 4  # for which OpenVINO keeps a program of its own: it is faster, and takes seconds to make


class Session(ABC):
    """Gives the named outputs of a graph.

    `shape`: what it takes, (B, 3, H, W), with None where any size will do. `inputs`: their names; a graph that takes
    others than images is asked by `answers`.
    """

    to: str  # the target it is written for

    def __init__(self, names: Sequence[str], shape: Sequence[int | None], inputs: Sequence[str]) -> None:
        self.names, self.shape, self.inputs = tuple(names), tuple(shape), tuple(inputs)

    def answers(self, *inputs: Array) -> dict[str, Array]:
        """As they are."""
        return dict(zip(self.names, self.run(*map(np.ascontiguousarray, inputs)), strict=True))

    def __call__(self, images: Array) -> dict[str, Array]:
        """Of images (B, 3, H, W); a graph for a fixed batch gets them one batch after the other."""
        self.require_size(*images.shape[2:])
        batch = self.shape[0]
        parts = [images] if batch is None else [images[i : i + batch] for i in range(0, len(images), batch)]
        found = [self._explained_run(full_batch(part, batch)) for part in parts]
        columns = (column[0] if len(column) == 1 else np.concatenate(column) for column in zip(*found, strict=True))
        return {name: column[: len(images)] for name, column in zip(self.names, columns, strict=True)}

    def require_size(self, height: int, width: int) -> None:
        own = self.shape[2:]
        if any(side is not None and side != given for side, given in zip(own, (height, width), strict=True)):
            raise InputError(
                f"images of {height}x{width} pixels given; this export was written for {own[0]}x{own[1]} alone: "
                "export again with --size, or without --static where the model takes any size"
            )

    def _explained_run(self, images: Array) -> list[Array]:
        try:
            return self.run(images)
        except Exception as reason:  # each program has its own ways to refuse images
            raise InputError(
                f"images of {images.shape[2]}x{images.shape[3]} pixels cannot be used with this export "
                f"({reason_of(reason)}); give larger ones, or export again with --size"
            ) from reason

    @abstractmethod
    def run(self, *inputs: Array) -> list[Array]:
        """The outputs in their order."""


def full_batch(images: Array, batch: int | None) -> Array:
    """Images as many as the graph takes; the last is repeated."""
    missing = 0 if batch is None else batch - len(images)
    return np.concatenate([images, *[images[-1:]] * missing]) if missing else np.ascontiguousarray(images)


class OnnxSession(Session):
    to = "onnx"

    def __init__(
        self, path: Path, names: Sequence[str], shape: Sequence[int | None], inputs: Sequence[str] = IMAGES
    ) -> None:
        super().__init__(names, shape, inputs)
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(self, *inputs: Array) -> list[Array]:
        return self.session.run(list(self.names), dict(zip(self.inputs, inputs, strict=True)))


class OpenVinoSession(Session):
    """One compiled program for each shape of the images or maps, as a program for any shape is slower.

    Lists, such as those of regions, are of another length every time, and stay of any length.
    """

    to = "openvino"

    def __init__(
        self, path: Path, names: Sequence[str], shape: Sequence[int | None], inputs: Sequence[str] = IMAGES
    ) -> None:
        super().__init__(names, shape, inputs)
        import openvino

        self.core = openvino.Core()
        self.model = self.core.read_model(str(path))
        self.compiled: OrderedDict[InputShapes, Any] = OrderedDict()

    def run(self, *inputs: Array) -> list[Array]:
        shapes = tuple((name, each.shape) for name, each in zip(self.inputs, inputs, strict=True) if each.ndim == 4)
        outputs = self.program(shapes)(dict(zip(self.inputs, inputs, strict=True)))
        return [outputs[name] for name in self.names]

    def program(self, shape: InputShapes) -> Any:
        if shape not in self.compiled:
            model = self.model.clone()
            model.reshape({name: list(sides) for name, sides in shape})
            # Some processors would compute in half precision by default, and answers would differ from torch's.
            options = {
                "INFERENCE_PRECISION_HINT": "f32",
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
                "PERFORMANCE_HINT": "LATENCY",
            }
            self.compiled[shape] = self.core.compile_model(model, "CPU", options)
        self.compiled.move_to_end(shape)
        if len(self.compiled) > MOST_SHAPES:
            self.compiled.popitem(last=False)
        return self.compiled[shape]


class TorchSession(Session):
    to = "torch"

    def __init__(
        self, path: Path, names: Sequence[str], shape: Sequence[int | None], inputs: Sequence[str] = IMAGES
    ) -> None:
        super().__init__(names, shape, inputs)
        self.program = torch.export.load(path).module(check_guards=False)  # more is possible than was proved

    def run(self, *inputs: Array) -> list[Array]:
        with torch.no_grad():
            return [output.numpy() for output in self.program(*map(torch.from_numpy, inputs))]


SESSIONS: dict[str, type[Any]] = {kind.to: kind for kind in (OnnxSession, OpenVinoSession, TorchSession)}


def open_session(
    folder: Path,
    to: str,
    names: Sequence[str],
    shape: Sequence[int | None] = (),
    inputs: Sequence[str] = IMAGES,
    graph: str = "model",
) -> Session:
    """A graph in a folder, ready to be run; a missing package and a damaged file are said in one line."""
    runtime = RUNTIMES[to]
    if runtime is not None:
        require_packages(runtime)
    path = folder / f"{graph}{GRAPH_SUFFIXES[to][0]}"
    try:
        return SESSIONS[to](path, names, shape, inputs)
    except Exception as reason:  # each program has its own ways to refuse a file
        raise InputError(f"{path} cannot be loaded ({reason_of(reason)}); export the model again") from reason
