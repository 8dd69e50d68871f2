"""Graphs in whole numbers of eight bits, with ranges that were seen on real pictures.

Whether the answers are still good is for the caller to measure: one model loses nothing, another its mind.
"""

import contextlib
import importlib.util
import io
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import InputError, to_install
from vitreous.exports.graph import IMAGES
from vitreous.exports.session import FILES
from vitreous.files.reading import reason_of


def require_quantiser(to: str) -> None:
    """Said before the work."""
    if to == "torch":
        raise InputError("--int8 and --to torch given; graphs for onnx and openvino can be quantised")
    if to == "openvino" and importlib.util.find_spec("nncf") is None:
        raise InputError(f"--int8 for OpenVINO needs the package nncf: {to_install('nncf')}")


def quantise(folder: Path, to: str, images: Iterable[NDArray[np.float32]]) -> None:
    """Put a graph of eight bits in the place of the one in the folder; `images` (1, 3, H, W) show the ranges."""
    try:
        with quiet():
            (quantise_onnx if to == "onnx" else quantise_openvino)(folder, images)
    except MemoryError:
        raise
    except Exception as reason:  # quantisers have many ways to say no
        raise InputError(f"this graph cannot be quantised ({reason_of(reason)}); leave out --int8") from reason


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Quantisers tell about their own work, by bars and by warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def quantise_onnx(folder: Path, images: Iterable[NDArray[np.float32]]) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Pictures(CalibrationDataReader):
        def __init__(self) -> None:
            self.rest = iter(images)

        def get_next(self) -> dict[str, NDArray[np.float32]] | None:
            found = next(self.rest, None)
            return None if found is None else {IMAGES[0]: found}

    whole, path = folder / "fp32.onnx", folder / FILES["onnx"][0]
    path.rename(whole)
    quantize_static(
        str(whole),
        str(path),
        Pictures(),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["Conv", "MatMul", "Gemm"],
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True},  # attention itself keeps its numbers
    )
    whole.unlink()


def quantise_openvino(folder: Path, images: Iterable[NDArray[np.float32]]) -> None:
    import nncf
    import openvino

    shown = list(images)
    path = folder / FILES["openvino"][0]
    graph = openvino.Core().read_model(str(path))
    made = nncf.quantize(graph, nncf.Dataset(shown), subset_size=len(shown), model_type=nncf.ModelType.TRANSFORMER)
    staged = folder / "int8.xml"
    openvino.save_model(made, str(staged), compress_to_fp16=False)
    del graph, made  # the weights are mapped into memory from the file that is replaced
    for name in FILES["openvino"]:
        staged.with_suffix(Path(name).suffix).replace(folder / name)
