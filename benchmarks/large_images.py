"""Feature maps of one large image: in tiles, as inference on a CPU makes them, beside whole maps.

    python benchmarks/large_images.py                       # paca_tiny, 4096 x 4096
    python benchmarks/large_images.py xcit_tiny_12_p16 --side 2048

Each measurement is a process of its own, in turns, so that the largest memory is its own. Memory is what the process
grows by above the loaded model, with the image in it.
"""

import resource
import statistics
import subprocess
import sys
import time
from typing import Literal

import tyro

KINDS = ("tiles", "whole")


def main(
    model: str = "paca_tiny",
    /,
    side: int = 4096,
    rounds: int = 3,
    threads: int = 2,
    only: Literal["tiles", "whole"] | None = None,
) -> None:
    """`only` is for the processes that this one starts."""
    if only is not None:
        measure(model, side, threads, whole=only == "whole")
        return
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    words = [sys.executable, __file__, model, "--side", str(side), "--threads", str(threads), "--only"]
    for _ in range(rounds):
        for kind, kept in found.items():
            seconds, gigabytes = subprocess.run(
                [*words, kind], check=True, capture_output=True, text=True
            ).stdout.split()
            kept.append((float(seconds), float(gigabytes)))
            print(f"{model} {side} x {side}, {kind}: {kept[-1][0]:.1f} s, {kept[-1][1]:.2f} GB", flush=True)
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
        begun = time.perf_counter()
        model(image)
    print(time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6 - before)


def memory_now() -> float:
    """Gigabytes that this process holds."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1e6 for line in status if line.startswith("VmRSS"))


if __name__ == "__main__":
    tyro.cli(main)
