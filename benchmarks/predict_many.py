"""Many pictures from files to answers: `predict` and `embed` beside a plain loop over the same files.

    python benchmarks/predict_many.py                               # 500 JPEGs: two models beside timm's plain loop
    python benchmarks/predict_many.py --models paca_tiny pvt_v2_b1 --plain pvt_v2_b1
    python benchmarks/predict_many.py --processes                   # one process and two, one thread each
    python benchmarks/predict_many.py --embed --count 10000         # features beside inference

The plain loop is what examples of timm show: PIL opens a file, timm's transform of the model makes a tensor of it, 32
of them are a batch, and the model's five likeliest classes are kept. Everything is measured in turns within one process
(with --processes: by processes in turns), models have random weights and are loaded before. Wall time; a ratio is the
median over the rounds, with its smallest and largest.
"""

import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import timm
import torch
import tyro
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

from vitreous.embed import embed
from vitreous.predict import predict
from vitreous.registry import create_model
from vitreous.runs.model_folder import data_of, save_model
from vitreous.runs.trained_model import TrainedModel

WIDTH, HEIGHT, BATCH = 500, 375, 32


def draw_photos(folder: Path, count: int) -> list[Path]:
    """JPEGs of 46 kB with detail at every scale, as photographs have it."""
    rng, files = np.random.default_rng(0), []
    for number in range(count):
        values = rng.normal(128, 4, (HEIGHT, WIDTH, 3))
        for side in (3, 6, 12, 25, 50, 100):
            coarse = Image.fromarray(rng.integers(0, 256, (side * 3 // 4 + 1, side, 3), np.uint8))
            drawn = coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
            values += (np.asarray(drawn, np.float64) - 128) * (2.5 / side**0.6)
        files.append(folder / f"{number:05d}.jpg")
        Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(files[-1], quality=90)
    return files


def built(name: str) -> TrainedModel:
    torch.manual_seed(0)
    return data_of(create_model(name).eval(), name)


def plain_loop(name: str, files: list[Path]) -> Callable[[], None]:
    torch.manual_seed(0)
    model = timm.create_model(name).eval()
    transform = create_transform(**resolve_model_data_config(model), is_training=False)

    @torch.no_grad()
    def loop() -> None:
        kept = []
        for start in range(0, len(files), BATCH):
            batch = [transform(Image.open(file).convert("RGB")) for file in files[start : start + BATCH]]
            kept += model(torch.stack(batch)).softmax(-1).topk(5).values.tolist()

    return loop


def whole_verb(trained: TrainedModel, folder: Path) -> Callable[[], None]:
    def run() -> None:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            predict(trained, (str(folder),))  # type: ignore[arg-type]  # Python takes models in memory

    return run


def network_alone(trained: TrainedModel, count: int) -> Callable[[], None]:
    """Batches that are in memory already, on all threads at once."""
    images = torch.randn(BATCH, 3, *trained.preprocess.size)

    @torch.inference_mode()
    def run() -> None:
        for start in range(0, count, BATCH):
            trained.model(images[: count - start])

    return run


def in_turns(contenders: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Wall and processor seconds of each round; a first round warms up."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, run in contenders.items():
            wall, used = time.perf_counter(), time.process_time()
            run()
            if number:
                seconds[name].append((time.perf_counter() - wall, time.process_time() - used))
    return seconds


def tell(seconds: dict[str, list[tuple[float, float]]], count: int, baseline: str) -> None:
    print("| | pictures/s | ratio | smallest to largest | processor seconds |")
    print("|---|---:|---:|---:|---:|")
    for name, found in seconds.items():
        pairs = zip(seconds[baseline], found, strict=True)
        ratios = [before[0] / now[0] for before, now in pairs]
        rate = count / statistics.median(wall for wall, _ in found)
        used = statistics.median(processor for _, processor in found)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"| {name} | {rate:.1f} | {statistics.median(ratios):.2f} | {spread} | {used:.1f} |", flush=True)


def as_processes(count: int, model: Path, folder: Path, out: Path) -> tuple[float, float]:
    """Wall and processor seconds of `vitreous predict --jsonl` in so many processes of one thread each."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(count)}
    words = [sys.executable, "-m", "vitreous", "predict", str(model), str(folder), "--jsonl", "--out", str(out)]
    start, before = time.perf_counter(), os.times()
    ranks = [subprocess.Popen(words, env=environment | {"RANK": str(rank)}) for rank in range(count)]
    assert [rank.wait() for rank in ranks] == [0] * count
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, used


def compare_processes(name: str, folder: Path, count: int, rounds: int) -> None:
    trained = built(name)
    with tempfile.TemporaryDirectory() as place:
        stored = Path(place, "model")
        save_model(stored, trained.model, name=name, model_args={}, task="classify", classes=trained.classes,
                   preprocess=trained.preprocess)  # fmt: skip
        found: dict[str, list[tuple[float, float]]] = {"1 process": [], "2 processes": []}
        for number in range(rounds):
            for processes, kept in enumerate(found.values(), 1):
                kept.append(as_processes(processes, stored, folder, Path(place, f"{number}-{processes}")))
    print(f"{name}, with starting Python and loading the model:")
    tell(found, count, "1 process")


def compare_embed(name: str, folder: Path, count: int, rounds: int) -> None:
    trained, number = built(name), iter(range(1000))
    with tempfile.TemporaryDirectory() as place:

        def write() -> None:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                embed(trained, (str(folder),), out=Path(place, str(next(number))))  # type: ignore[arg-type]

        seconds = in_turns({"network alone": network_alone(trained, count), "embed": write}, rounds)
    print(f"{name}:")
    tell(seconds, count, "network alone")


def main(
    models: tuple[str, ...] = ("paca_b0", "pvt_v2_b0"),
    plain: str = "pvt_v2_b0",
    count: int = 500,
    rounds: int = 5,
    threads: int = 2,
    processes: bool = False,
    embed: bool = False,
) -> None:
    torch.set_num_threads(threads)
    load = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(f"{count} JPEGs of {WIDTH}x{HEIGHT}, {threads} threads, torch {torch.__version__}, {rounds} rounds, {load}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files = draw_photos(folder, count)
        if processes:
            compare_processes(models[0], folder, count, rounds)
        elif embed:
            compare_embed(models[0], folder, count, rounds)
        else:
            contenders = {f"plain loop, {plain}": plain_loop(plain, files)}
            contenders |= {f"predict, {name}": whole_verb(built(name), folder) for name in models}
            tell(in_turns(contenders, rounds), count, f"plain loop, {plain}")


if __name__ == "__main__":
    tyro.cli(main)
