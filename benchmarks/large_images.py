"""One large image: feature maps in tiles, as inference on a CPU makes them, beside whole maps; and the verbs.

    python benchmarks/large_images.py                       # paca_tiny, 4096 x 4096
    python benchmarks/large_images.py xcit_tiny_12_p16 --side 2048
    python benchmarks/large_images.py --verbs               # predict and explain a photograph of 6000 x 4000 pixels

Each measurement is a process of its own, in turns, so that the largest memory is its own. Memory is what the process
grows by above the loaded model, with the image in it.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import tyro

KINDS = ("tiles", "whole")
WIDTH, HEIGHT = 6000, 4000  # of the photograph
ALLOWED = {"predict": "4GB", "explain": "6GB"}  # to take above the loaded model


def main(
    model: str = "paca_tiny",
    /,
    side: int = 4096,
    rounds: int = 3,
    threads: int = 2,
    verbs: bool = False,
    only: Literal["tiles", "whole", "predict", "explain"] | None = None,
) -> None:
    """`only` is for the processes that this one starts."""
    if only in ALLOWED:
        measure_verb(model, threads, only)
        return
    if only is not None:
        measure(model, side, threads, whole=only == "whole")
        return
    kinds = tuple(ALLOWED) if verbs else KINDS
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    words = [sys.executable, __file__, model, "--side", str(side), "--threads", str(threads), "--only"]
    pixels = f"{WIDTH} x {HEIGHT}" if verbs else f"{side} x {side}"
    for _ in range(1 if verbs else rounds):
        for kind, kept in found.items():
            told = subprocess.run([*words, kind], check=True, capture_output=True, text=True).stdout.split()
            kept.append((float(told[-2]), float(told[-1])))
            print(f"{model} {pixels}, {kind}: {kept[-1][0]:.1f} s, {kept[-1][1]:.2f} GB", flush=True)
    if verbs:
        return
    ratios = [tiles[0] / whole[0] for tiles, whole in zip(found["tiles"], found["whole"], strict=True)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"tiles take {statistics.median(ratios):.2f} ({spread}) times as long as whole maps")


def measure(name: str, side: int, threads: int, *, whole: bool) -> None:
    import timm
    import torch

    import vitreous.layers.mlp as mlp
    import vitreous.layers.tiles as tiles

    torch.set_num_threads(threads)
    if whole:  # no map is large enough for tiles
        mlp.WORTH_TILES_BYTES = tiles.STRIP_BYTES = 1 << 60
    model = timm.create_model(name, features_only=True).eval()
    with torch.inference_mode():
        model(torch.zeros(1, 3, 64, 64))  # libraries have loaded what they need
        before = memory_now()
        image = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
        tell(lambda: model(image), before)


def measure_verb(name: str, threads: int, verb: str) -> None:
    """With random weights: what is seen means nothing, and takes as long."""
    import numpy as np
    import torch
    from PIL import Image

    import vitreous
    from vitreous.registry import create_model
    from vitreous.runs.model_folder import data_of, save_model
    from vitreous.runs.trained_model import at_size

    torch.set_num_threads(threads)
    trained = at_size(data_of(create_model(name).eval(), name), f"{HEIGHT}x{WIDTH}")
    with tempfile.TemporaryDirectory() as folder:
        grain = np.random.default_rng(0).integers(0, 255, (HEIGHT // 8, WIDTH // 8, 3), np.uint8)
        photo = str(Path(folder, "photo.jpg"))
        Image.fromarray(grain).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(photo)
        stored = str(Path(folder, "model"))
        save_model(stored, trained.model, name=name, model_args={}, task="classify", classes=trained.classes,
                   preprocess=trained.preprocess)  # fmt: skip
        with torch.inference_mode():
            trained.model(torch.zeros(1, 3, 64, 64))
        before = memory_now()
        run = vitreous.predict if verb == "predict" else vitreous.explain
        tell(lambda: run(stored, photo, max_memory=ALLOWED[verb], device="cpu", out=Path(folder, "out")), before)


def tell(work: Callable[[], object], before: float) -> None:
    """Seconds, and gigabytes above those from before."""
    begun = time.perf_counter()
    work()
    print(time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6 - before)


def memory_now() -> float:
    """Gigabytes that this process holds."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1e6 for line in status if line.startswith("VmRSS"))


if __name__ == "__main__":
    tyro.cli(main)
