"""A competing load: processes that multiply matrices until they are stopped, one on each core.

They are killed when the block ends, also by an error or Ctrl-C, and end by themselves within a product when the process
that started them is gone.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SPINNING = """
import os, sys
import numpy
parent, matrix = int(sys.argv[1]), numpy.random.rand(384, 384).astype("float32")
print("ready", flush=True)
while os.getppid() == parent:
    matrix @ matrix
"""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def usable_cores() -> int:
    """Those that this process may use; in a container or under taskset, fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def competing_load(processes: int | None = None) -> Iterator[list[int]]:
    """Keep every usable core busy, or as many as given, within the block; gives the ids of the processes."""
    started: list[subprocess.Popen[str]] = []
    command = [sys.executable, "-c", SPINNING, str(os.getpid())]
    try:
        for _ in range(processes or usable_cores()):
            started.append(
                subprocess.Popen(  # noqa: S603  (a constant)
                    command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    env=os.environ | dict.fromkeys(THREAD_VARIABLES, "1"),
                    start_new_session=True,  # Ctrl-C is for us, and we stop them
                )
            )
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("a process of the competing load ended before it began")
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
