"""What explanations cost, in forward passes of the same model on the same image, measured in turns.

    python benchmarks/explain_cost.py
    python benchmarks/explain_cost.py --model paca_small --rounds 5

All clusters of the last clustered stage are scored for one image. A forward pass is that of a batch, per image: the
hardest unit to compare with, since single images take longer each. Masking is given as its throughput over that of
plain inference on as many images.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable

import timm
import torch
import tyro

import vitreous
from vitreous.attribution.target import ClassTarget
from vitreous.clusters.gates import PartialForward, cluster_layer
from vitreous.clusters.importance import RANKINGS, rankings_for
from vitreous.clusters.token_gradient import TokenGradient

GOALS = {"ablation": 40, "logit_gate": 3, "value_gate": 3, "token_gradient": 3, "integrated": 10}


def seconds(work: Callable[[], object]) -> float:
    """Processor time of all threads: less disturbed by other programs than wall-clock time."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main(model: str = "paca_tiny", size: int = 224, rounds: int = 3, threads: int = 2, batch: int = 8) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network = timm.create_model(model).eval()
    images = torch.randn(batch, 3, size, size)
    image, target, layer = images[:1], ClassTarget(labels=torch.tensor([0])), cluster_layer(network)
    clusters = PartialForward(network, image, layer).count

    def plain() -> None:
        with torch.no_grad():
            network(images)

    def single() -> None:
        with torch.no_grad():
            network(image)

    def token_gradient() -> None:
        TokenGradient()(network, image, target)

    names = [name for name in rankings_for(layer) if name != "random"]
    works: dict[str, Callable[[], object]] = {"plain": plain, "single": single, "token_gradient": token_gradient}
    works |= {name: lambda name=name: RANKINGS[name](network, image, target, layer) for name in names}
    times: dict[str, list[float]] = {name: [] for name in works}
    single(), token_gradient()  # warm up
    for turn in range(rounds):
        for name in sorted(works, reverse=bool(turn % 2)):
            times[name].append(seconds(works[name]))
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    versions = f"torch {torch.__version__}, vitreous {vitreous.__version__}"
    print(f"{model} at {size}x{size}, {clusters} clusters of stage {layer.stage}, batch {batch}, {rounds} rounds")
    print(f"{platform.processor() or platform.machine()}, {threads} threads, {versions}, load {load}")
    print(f"{'':16}{'seconds':>9}{'forwards':>10}{'of a single':>13}{'goal':>7}")
    for name in works:
        # Ratios within a round: both sides saw the same load.
        ratios = [took * batch / base for took, base in zip(times[name], times["plain"], strict=True)]
        alone = [took / base for took, base in zip(times[name], times["single"], strict=True)]
        forwards = statistics.median(ratios) / (batch if name == "plain" else 1)
        row = f"{name:16}{statistics.median(times[name]):9.3f}{forwards:10.1f}{statistics.median(alone):13.1f}"
        print(f"{row}{GOALS.get(name, ''):>7}")
    masked = [clusters * base / batch / took for took, base in zip(times["masking"], times["plain"], strict=True)]
    print(f"masking: {statistics.median(masked):.0%} of plain throughput (goal 90%)")


if __name__ == "__main__":
    tyro.cli(main)
