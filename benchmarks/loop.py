"""What the training loop adds to forward, backward and the optimiser's step, part by part.

    python benchmarks/loop.py
    python benchmarks/loop.py --model partialformer_b0 --ema 0.999

The loop is that of `vitreous train`, on the embedded shapes, with a watch around its parts: the time of a part is what
it takes without the parts it calls. By the clock, waiting for images and for the processor counts as well; processor
time is of the main process alone, and hardly depends on what else the machine does.
"""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import tyro

from vitreous.runs.run_folder import RunFolder
from vitreous.train import Training, open_splits
from vitreous.training.settings import TrainSettings
from vitreous.training.stop import StopSignals

WARM_UP = 3  # steps
CLOCKS = {"by the clock": time.perf_counter, "processor time": time.process_time}
WORK = ("forward", "backward", "optimiser")
REST = "everything else"


class Watch:
    """Seconds spent in each part, by every clock."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.spent = {clock: Counter[str]() for clock in CLOCKS}
        self._running, self._since = [REST], self._now()

    def around(self, owner: Any, name: str, part: str) -> None:
        """From now on calls of `owner.name` are of this part."""
        original: Callable[..., Any] = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._change(lambda: self._running.append(part))
            try:
                return original(*args, **kwargs)
            finally:
                self._change(lambda: self._running.pop())

        setattr(owner, name, watched)

    def stop(self) -> None:
        self._change(lambda: None)

    def _change(self, running: Callable[[], object]) -> None:
        now = self._now()
        for clock, spent in self.spent.items():
            spent[self._running[-1]] += now[clock] - self._since[clock]
        self._since = now
        running()

    def _now(self) -> dict[str, float]:
        return {clock: read() for clock, read in CLOCKS.items()}


def watched_epoch(settings: TrainSettings) -> Watch:
    """One epoch; the first steps warm up and do not count."""
    watch = Watch()
    with StopSignals() as stop, RunFolder(settings.folder) as run:
        training = Training(settings, run, stop, open_splits(settings))
        training.spread()
        watch.around(training.task, "losses", "forward")
        watch.around(torch.Tensor, "backward", "backward")
        watch.around(training.state.optimizer, "step", "optimiser")
        watch.around(training.train_loader, "_next", "waiting for images")
        watch.around(training.train_loader, "on", "images to floats, on the device")
        watch.around(training, "clip_gradients", "norm of the gradient, clipping")
        watch.around(run, "log", "log")
        if training.state.ema is not None:
            watch.around(training.state.ema, "update", "average of the weights")
        whole_step = training.step

        def step(*args: Any) -> Any:
            stepped = whole_step(*args)
            if training.state.position.step == WARM_UP:
                watch.reset()
            return stepped

        training.step = step  # type: ignore[method-assign]
        training.train_epoch(0)
        watch.stop()
        training.close()
    return watch


def main(
    model: str = "paca_b0",
    size: int = 64,
    batch: int = 64,
    workers: int = 2,
    steps: int = 40,
    ema: float = 0.0,
    threads: int = 2,
) -> None:
    torch.set_num_threads(threads)
    load = os.getloadavg()[0]
    print(f"{model}, {size} x {size}, batches of {batch}, {workers} workers, {steps} steps, {threads} threads")
    print(f"torch {torch.__version__}, load {load:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainSettings(
            model,
            "shapes",
            size=size,
            batch_size=batch,
            train_count=batch * (steps + WARM_UP),
            workers=workers,
            ema=ema,
            log_every=10,
            device="cpu",
            out=Path(folder) / "run",
        )
        watch = watched_epoch(settings)
    for clock, spent in watch.spent.items():
        total = sum(spent.values())
        own = 1 - sum(spent[part] for part in WORK) / total
        print(f"\n{clock}: {1000 * total / steps:.0f} ms a step, of which the loop's own {100 * own:.1f} %")
        for part, seconds in spent.most_common():
            print(f"  {part:32} {1000 * seconds / steps:8.1f} ms {100 * seconds / total:6.1f} %")


if __name__ == "__main__":
    tyro.cli(main)
