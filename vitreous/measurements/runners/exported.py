"""What the runners of other programs than torch share: the model is exported for the one size that is measured."""

from abc import abstractmethod
from collections.abc import Callable

import numpy as np
import torch

from vitreous.errors import InputError
from vitreous.exports.graph import require_packages
from vitreous.heads.boxes import Detector
from vitreous.measurements.contender import Contender
from vitreous.measurements.runners import Runner

ImagesRun = Callable[[np.ndarray], object]


class Exported(Runner):
    steps = ("infer",)
    formats: tuple[str, ...]  # of `require_packages`

    def require(self, device: torch.device) -> None:
        require_packages(*self.formats)
        if device.type != "cpu":
            raise InputError(f"--mode {self.name} and --device {device} given; it is measured on the CPU: --device cpu")

    def prepare(self, contender: Contender) -> Callable[[], object]:
        if isinstance(contender.model, Detector):
            raise InputError(
                f"'{contender.label}' is a detector, whose choice of boxes cannot be exported; leave out --mode "
                f"{self.name}, or measure another --task"
            )
        images = contender.images()
        run = self.load(contender, torch.get_num_threads())
        return lambda: run(images.numpy())

    @abstractmethod
    def load(self, contender: Contender, threads: int) -> ImagesRun:
        """The contender's model in the other program, ready to be given images."""
