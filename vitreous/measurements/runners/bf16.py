"""Torch in mixed precision, as with `--amp bf16`: products in bfloat16, which some processors do faster."""

from collections.abc import Callable

from vitreous.measurements.contender import Contender
from vitreous.measurements.runners import Runner
from vitreous.runtime.device import autocast


class MixedPrecision(Runner):
    name = "bf16"
    order = 5

    def prepare(self, contender: Contender) -> Callable[[], object]:
        run = contender.run(contender.model)

        def step() -> object:
            with autocast(contender.device, self.name):
                return run()

        return step


RUNNER = MixedPrecision()
