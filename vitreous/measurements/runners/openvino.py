"""OpenVINO, with a static graph straight from torch.export."""

from vitreous.exports.graph import openvino_graph
from vitreous.measurements.contender import Contender
from vitreous.measurements.runners.exported import Exported, ImagesRun


class OpenVINO(Exported):
    name = "openvino"
    order = 30
    formats = ("openvino",)

    def load(self, contender: Contender, threads: int) -> ImagesRun:
        from openvino import Core

        settings = {
            "PERFORMANCE_HINT": "LATENCY",  # all threads work on one batch, as in torch
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",  # some processors would else compute in bfloat16
        }
        compiled = Core().compile_model(openvino_graph(contender.model, contender.images()), "CPU", settings)
        return lambda images: compiled([images])


RUNNER = OpenVINO()
