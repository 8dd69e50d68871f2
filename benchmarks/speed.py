"""Speed of our models against their peers, interleaved in one process and given as ratios.

    python benchmarks/speed.py                          # the pairs the README speaks of
    python benchmarks/speed.py --pair paca_tiny pvt_v2_b1 --size 224 --batch 8
    python benchmarks/speed.py --train                  # forward + backward

Each round times every model once, in turn, so that a busy moment of the machine hits all of them; the ratio is the
median over rounds of the rounds' own ratios, and its spread is the range of the middle half. Models of different size
are compared per multiply-add: images/s times the multiply-adds of an image.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import timm
import torch
import tyro
from torch import nn

import vitreous
from vitreous.figures.counting import count_model


@dataclass(frozen=True)
class Case:
    ours: str
    peer: str
    size: int
    batch: int
    train: bool = False
    per_mac: bool = False


CASES = [
    Case("paca_tiny", "convnext_tiny", 224, 8),
    Case("paca_tiny", "convnext_tiny", 1024, 1),
    Case("paca_tiny", "pvt_v2_b1", 224, 8),
    Case("paca_tiny", "pvt_v2_b1", 1024, 1),
    Case("paca_tiny", "convnext_tiny", 224, 8, train=True),
    Case("xcit_tiny_12_p16", "xcit_tiny_12_p16_224", 224, 8),
    Case("xcit_tiny_12_p16", "xcit_tiny_12_p16_224", 1024, 1),
    Case("xcit_small_12_p16", "xcit_small_12_p16_224", 224, 8),
    Case("xcit_small_12_p16", "xcit_small_12_p16_224", 1024, 1),
    Case("mat_2", "pvt_v2_b0", 224, 8, per_mac=True),
    Case("partialformer_b1", "pvt_v2_b0", 224, 8, per_mac=True),
    Case("emsnet_xtiny", "pvt_v2_b0", 224, 8, per_mac=True),
]


def step(model: nn.Module, images: torch.Tensor, train: bool) -> Callable[[], object]:
    def infer() -> object:
        with torch.inference_mode():
            return model(images)

    def learn() -> object:
        model.zero_grad(set_to_none=True)
        return model(images).sum().backward()

    return learn if train else infer


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(case: Case, rounds: int) -> tuple[list[float], list[float]]:
    images = torch.randn(case.batch, 3, case.size, case.size)
    runs = [step(timm.create_model(name).train(case.train), images, case.train) for name in (case.ours, case.peer)]
    for run in runs:
        run()
        run()
    times: list[list[float]] = [[], []]
    for turn in range(rounds):
        for i in (0, 1) if turn % 2 else (1, 0):
            times[i].append(seconds(runs[i]))
    return times[0], times[1]


def multiply_adds(case: Case) -> tuple[int, int]:
    ours, peer = (
        count_model(timm.create_model(name), (3, case.size, case.size)).macs for name in (case.ours, case.peer)
    )
    return ours, peer


def report(case: Case, ours: list[float], peer: list[float]) -> str:
    work = multiply_adds(case) if case.per_mac else (1, 1)
    ratios = [p / o * work[0] / work[1] for o, p in zip(ours, peer, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    kind = "train" if case.train else "infer"
    rates = [case.batch / statistics.median(times) for times in (ours, peer)]
    speeds = f"{case.ours} {rates[0]:6.2f}, {case.peer} {rates[1]:6.2f} images/s"
    compared = "per multiply-add" if case.per_mac else "ratio"
    return f"{kind} {case.size:>4} batch {case.batch}: {speeds}, {compared} {middle:.2f} [{low:.2f}, {high:.2f}]"


def main(
    pair: tuple[str, str] | None = None,
    size: int = 224,
    batch: int = 8,
    rounds: int = 15,
    train: bool = False,
    per_mac: bool = False,
    threads: int = 2,
) -> None:
    torch.set_num_threads(threads)
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    versions = f"torch {torch.__version__}, timm {timm.__version__}, vitreous {vitreous.__version__}"
    machine = platform.processor() or platform.machine()
    print(f"{machine}, {threads} threads, {versions}, fp32, load {load}, {rounds} rounds", flush=True)
    cases = [Case(*pair, size, batch, train, per_mac)] if pair else [case for case in CASES if case.train or not train]
    for case in cases:
        print(report(case, *compare(case, rounds)), flush=True)


if __name__ == "__main__":
    tyro.cli(main)
