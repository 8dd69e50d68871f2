"""ONNX Runtime, with a static graph."""

from pathlib import Path
from tempfile import TemporaryDirectory

from vitreous.exports.graph import IMAGES, export_onnx
from vitreous.measurements.contender import Contender
from vitreous.measurements.runners.exported import Exported, ImagesRun


class ONNXRuntime(Exported):
    name = "onnxruntime"
    order = 20
    formats = ("onnx", "onnxruntime")

    def load(self, contender: Contender, threads: int) -> ImagesRun:
        from onnxruntime import InferenceSession, SessionOptions

        options = SessionOptions()
        options.intra_op_num_threads = threads
        with TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            export_onnx(contender.model, contender.images(), path)
            session = InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda images: session.run(None, {IMAGES[0]: images})


RUNNER = ONNXRuntime()
