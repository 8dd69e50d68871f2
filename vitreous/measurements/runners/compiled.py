"""`torch.compile`, for the one size that is measured."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from vitreous.errors import InputError
from vitreous.files.reading import reason_of
from vitreous.measurements.contender import Contender
from vitreous.measurements.runners import Runner

MOST_PROGRAMS = 64  # of one class, which several models may share


class Compiled(Runner):
    name = "compiled"
    order = 10

    def prepare(self, contender: Contender) -> Callable[[], object]:
        run = contender.run(torch.compile(contender.model, dynamic=False))
        try:
            run()  # compiles
        except Exception as reason:  # compilers have many ways to say no
            raise InputError(
                f"model '{contender.label}' cannot be compiled for {contender.setting} ({reason_of(reason)}); leave "
                "out --mode compiled, or install a C++ compiler if there is none"
            ) from reason
        return run

    @contextmanager
    def session(self) -> Iterator[None]:
        import torch._dynamo

        with torch._dynamo.config.patch(recompile_limit=MOST_PROGRAMS):
            yield
        torch._dynamo.reset()


RUNNER = Compiled()
