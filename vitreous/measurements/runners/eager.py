"""Torch, one operation after the other."""

from collections.abc import Callable

from vitreous.measurements.contender import Contender
from vitreous.measurements.runners import Runner


class Eager(Runner):
    name = "eager"
    order = 0
    counted = True

    def prepare(self, contender: Contender) -> Callable[[], object]:
        return contender.run(contender.model)


RUNNER = Eager()
