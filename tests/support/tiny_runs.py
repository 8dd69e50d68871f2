"""Training runs of seconds: their settings, and processes that take and interrupt them."""

import multiprocessing
import os
import time
from pathlib import Path

import torch

from tests.support.ranks import processes
from tests.support.tiny_model import MODEL_ARGS
from vitreous.files.storage import sha256
from vitreous.runs.run_folder import read_metrics
from vitreous.train import train

# Batch norm, stochastic depth, averaged weights, accumulation, every augmentation: all that could break resuming.
TINY = dict(
    model="test_efficientnet",
    data="shapes",
    size=32,
    epochs=3,
    batch_size=8,
    accumulate=2,
    train_count=40,
    val_count=20,
    warmup_epochs=1.0,
    ema=0.9,
    drop_path=0.2,
    mixup=0.5,
    cutmix=0.5,
    erasing=0.3,
    color_jitter=0.2,
    augment="rand-m5-n1",
    log_every=1,
    checkpoint_steps=2,
    workers=0,
    device="cpu",
)
PLAIN = dict(TINY, epochs=1, accumulate=1, ema=0.0, mixup=0.0, cutmix=0.0, augment="", erasing=0.0, color_jitter=0.0)
STEPS = 15  # 3 epochs of 5
# Batch norm in every block, clusters and convolutions, and everything random but dropout.
TINY_EMSNET = dict(model="emsnet_xxtiny", model_args=("dims=(16,16,32,32)", "depths=(1,1,1,1)"))
TINY_PACA = dict(
    model="paca_tiny",
    model_args=("dims=(8,16,24,32)", "depths=(1,1,1,1)", "heads=(1,2,3,4)", "clusters=(4,4,4,0)"),
)
TINY_PACA_RUN = TINY_PACA | dict(
    data="shapes",
    size=32,
    epochs=2,
    batch_size=8,
    train_count=40,
    val_count=21,
    warmup_epochs=1.0,
    drop_path=0.0,
    erasing=0.3,
    log_every=1,
    checkpoint_steps=2,
    workers=0,
    device="cpu",
)
TINY_BACKBONE = tuple(f"{name}={value}" for name, value in MODEL_ARGS.items())
FINER_BACKBONE = ("dims=(16,32,48,64)", "depths=(1,1,1,1)", "heads=(1,2,3,4)", "clusters=(6,6,6,0)", "stem_stride=2")
# Eight pictures by heart: enough to see a task learn, and ten seconds at most.
DENSE = dict(
    model="paca_tiny", model_args=TINY_BACKBONE, data="shapes", size=64, train_count=8, val_count=2, batch_size=4,
    epochs=30, lr=5e-3, warmup_epochs=2.0, drop_path=0.0, flip=0.0, log_every=1, workers=0, device="cpu",
    weight_decay=0.0,
)  # fmt: skip
DENSE_TASKS = {
    "segment": dict(task="segment", head_args=("pyramid=32", "width=32", "dropout=0.0"), short=(64,), crop=(64, 64),
                    rescale=(1.0, 1.0), model_args=FINER_BACKBONE, batch_size=2),
    "detect": dict(task="detect", head="fcos", head_args=("channels=16", "convs=1"), short=(64,), longest=64),
    "keypoints": dict(task="keypoints", head_args=("width=16",), crop=(64, 64)),
}  # fmt: skip


def run_tiny(out: Path, changes: dict) -> None:
    """In a process of its own. One thread: sums over threads come in no fixed order on a busy machine."""
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # for the loader's workers, as in a process started by hand
    train(**TINY | changes, out=out)


def start(out: Path, **changes):
    process = processes.Process(target=run_tiny, args=(out, changes))
    process.start()
    return process


def finish(out: Path, **changes) -> Path:
    process = start(out, **changes)
    process.join(120)
    assert process.exitcode == 0
    return out


def wait_for_step(out: Path, step: int, process) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.is_alive():
        lines = read_metrics(out)
        if lines and lines[-1]["step"] >= step:
            return
        time.sleep(0.002)


def interrupt(out: Path, step: int, number: int, *, after: float = 0.0, **changes) -> int | None:
    """Start, send a signal once `step` is logged, and return the exit code."""
    process = start(out, **changes)
    wait_for_step(out, step, process)
    time.sleep(after)
    if process.is_alive():
        os.kill(process.pid, number)
    process.join(60)
    return process.exitcode


def fingerprint(out: Path) -> dict:
    """Weights, averaged weights and optimiser to the bit, and all that was logged but time and speed."""
    last = out / "checkpoints" / (out / "checkpoints" / "LATEST").read_text().strip()
    lines = [{key: value for key, value in line.items() if "second" not in key} for line in read_metrics(out)]
    files = [*sorted(last.glob("tensors*")), out / "best" / "model.safetensors", out / "final" / "model.safetensors"]
    return {"files": [sha256(path) for path in files], "metrics": lines}
