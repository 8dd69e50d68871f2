"""Training speed at 32x32: paca_b0_cifar against pvt_v2_b0 with the same strides, in turns.

    python benchmarks/cifar.py
    python benchmarks/cifar.py --batch 128 --rounds 30
    python benchmarks/cifar.py --amp bf16                   # on processors that multiply bfloat16

PVTv2 is given PaCa's stem stride of 1 ("stem"), and PaCa's stride of 1 before the last stage as well ("all"): only then
do both see maps of 32, 16, 8 and 8 pixels. A step is forward, backward and AdamW's update, with stochastic depth.
"""

import os
import platform
import statistics
from typing import Literal

import timm
import torch
import tyro
from torch import nn

import vitreous
from vitreous.figures.counting import count_model
from vitreous.measurements.benchmark import time_rounds
from vitreous.measurements.statistics import ratio_by_round
from vitreous.runtime.device import autocast
from vitreous.training.optim import build_optimizer

DROP_PATH = 0.1  # as in the recipe paca_cifar100


def pvt(*, last: bool) -> nn.Module:
    model = timm.create_model("pvt_v2_b0", num_classes=100, drop_path_rate=DROP_PATH)
    model.patch_embed.proj.stride = (1, 1)
    if last:
        model.stages[3].downsample.proj.stride = (1, 1)
    return model


class Step:
    def __init__(self, model: nn.Module, batch: int, amp: str) -> None:
        self.model, self.amp = model.train(), amp
        self.images, self.labels = torch.randn(batch, 3, 32, 32), torch.randint(100, (batch,))
        self.optimizer = build_optimizer(model, lr=1e-4, weight_decay=0.05)

    def __call__(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with autocast(self.images.device, self.amp):
            loss = nn.functional.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()


def main(batch: int = 64, rounds: int = 15, threads: int = 2, amp: Literal["off", "bf16"] = "off") -> None:
    torch.set_num_threads(threads)
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    versions = f"torch {torch.__version__}, timm {timm.__version__}, vitreous {vitreous.__version__}"
    print(
        f"{platform.processor() or platform.machine()}, {threads} threads, {versions}, amp {amp}, load {load}",
        flush=True,
    )
    models = {
        "paca_b0_cifar": timm.create_model("paca_b0_cifar", drop_path_rate=DROP_PATH),
        "pvt_v2_b0, stem": pvt(last=False),
        "pvt_v2_b0, all": pvt(last=True),
    }
    steps = {name: Step(model, batch, amp) for name, model in models.items()}
    times = time_rounds(steps, rounds, label="training steps")
    ours = times["paca_b0_cifar"]
    for name, model in models.items():
        taken = times[name]
        middle, low, high = ratio_by_round(taken, ours)
        macs, rate = count_model(model, (3, 32, 32)).macs / 1e6, batch / statistics.median(taken)
        print(f"{name:<16} {macs:4.0f} M multiply-adds {rate:7.1f} images/s", end="")
        print("" if taken is ours else f"   PaCa trains {middle:.2f} [{low:.2f}, {high:.2f}] times as fast", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
