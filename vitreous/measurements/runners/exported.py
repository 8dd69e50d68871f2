"""Models in other programs than torch: exported for the one size that is measured, or a folder as it was exported."""

from abc import abstractmethod
from collections.abc import Callable

import numpy as np
import torch

from vitreous.errors import InputError
from vitreous.exports.graph import require_packages
from vitreous.exports.model import ExportedModel
from vitreous.exports.session import PACKAGES_TOLD
from vitreous.measurements.contender import Contender
from vitreous.measurements.runners import Runner
from vitreous.tasks.base import Task

ImagesRun = Callable[[np.ndarray], object]


class Exported(Runner):
    steps = ("infer",)
    formats: tuple[str, ...]  # of `require_packages`

    def require(self, device: torch.device, task: Task) -> None:
        require_packages(*self.formats)
        if device.type != "cpu":
            raise InputError(f"--mode {self.name} and --device {device} given; it is measured on the CPU: --device cpu")
        if task.targets == "boxes":
            raise InputError(
                f"--mode {self.name} and a detector given, which chooses its boxes outside of any graph; export its "
                "run with vitreous export, and measure the folder in its place"
            )

    def prepare(self, contender: Contender) -> Callable[[], object]:
        images = contender.images()
        run = self.load(contender, torch.get_num_threads())
        return lambda: run(images.numpy())

    @abstractmethod
    def load(self, contender: Contender, threads: int) -> ImagesRun:
        """The contender's model in the other program, ready to be given images."""


class Folder(Runner):
    """An exported model, from images to what its task makes of them."""

    steps = ("infer",)

    def __init__(self, program: str) -> None:
        self.name = program

    def prepare(self, contender: Contender) -> Callable[[], object]:
        return contender.run(contender.model)


def runner_of_folder(model: ExportedModel) -> Folder:
    """Named after the program that runs the graph."""
    return Folder(PACKAGES_TOLD[model.session.to])
