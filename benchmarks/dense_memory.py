"""Peak memory of a training step of Mask R-CNN on PaCa and on PVTv2, whose skeleton PaCa's first generation has.

    python benchmarks/dense_memory.py                       # b0, b1, b2 at 800x1216, batch 1; a minute or two
    python benchmarks/dense_memory.py --sizes b0 --height 1024 --width 1024

Every layer runs forward and backward on tensors that have shapes and no values: nothing is computed, and every run
gives the same figures. 512 regions are classified and 128 of them segmented, the most that training samples of an
image. A real step segments as many as it happens to find, so that two backbones can only be compared with the number
fixed: of `paca_b0` the activations are 1298 MiB with 8 and 1610 MiB with 128 of them. Choosing regions, pooling their
features, and the losses are left out: one real step of `paca_b0` at this size took 1350 MiB, and at 192x256 real steps
with the same numbers of regions were 4 % less (`paca_b0`) and 8 % more (`pvt_v2_b0`). Each measurement is a process of
its own.

`activations` are all tensors that operations made, from their making until nothing refers to them any more, at the
moment when they are most. `whole` counts beside them the weights, the gradients so far and AdamW's two moments, which
is what a GPU has to hold. timm's model is measured as it comes, with fused attention, which never holds the attention
map, and with the map written out (TIMM_FUSED_ATTN=0), as it was when the paper's figures were taken. In brackets are
the shares of both that PaCa takes: as it comes, and with what `vitreous train --grad-checkpointing` computes twice.
"""

import json
import os
import subprocess
import sys
from typing import Literal

import timm
import torch
import tyro
from memory import Allocations
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from vitreous.heads.detect import build_detector
from vitreous.models.base import RECOMPUTABLE_PARTS

MB = 2**20
REGIONS, OBJECTS = 512, 128
PVT = ("fused", "written out")


class Memory(Allocations):
    """`peak` of activations, and `whole`, the peak if gradients, which are freed at once, had stayed."""

    def __init__(self) -> None:
        super().__init__()
        self.gradients = self.whole = 0

    def _count(self, storage: torch.UntypedStorage) -> None:
        super()._count(storage)
        self.whole = max(self.whole, self.alive + self.gradients)

    def drop(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.gradients += parameter.grad.nbytes
        parameter.grad = None


def measure(name: str, height: int, width: int, saving: str) -> dict[str, float]:
    backbone = timm.create_model(name, features_only=True, drop_path_rate=0.1)
    if saving != "off":
        backbone.model.set_grad_checkpointing(True, part=saving)
    model = build_detector(backbone, "maskrcnn", classes=80).train()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    mode = FakeTensorMode()
    make_fake(model, mode)
    with mode:
        images = torch.randn(1, 3, height, width)
        with Memory() as counted:
            counted.ignore(images, *model.parameters(), *model.buffers())
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(counted.drop)
            outputs = model.raw(images, proposals=REGIONS, detections=OBJECTS)
            sum(tensor.sum() for tensor in tree_leaves(outputs)).backward()
    moments = 2 * weights
    return {"activations": counted.peak / MB, "whole": (counted.whole + weights + moments) / MB}


def make_fake(model: nn.Module, mode: FakeTensorMode) -> None:
    """Parameters and buffers with shapes but without values."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(mode.from_tensor(parameter.detach()))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = mode.from_tensor(buffer)


def in_process(name: str, height: int, width: int, *, fused: bool = True, saving: str = "off") -> dict[str, float]:
    command = [sys.executable, __file__, "--one", name, "--height", str(height), "--width", str(width)]
    command += ["--saving", saving]
    environment = {**os.environ, "TIMM_FUSED_ATTN": "1" if fused else "0"}
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def main(
    sizes: tuple[str, ...] = ("b0", "b1", "b2"),
    height: int = 800,
    width: int = 1216,
    one: str | None = None,
    saving: Literal["off", "blocks", "mlp"] = "off",
) -> None:
    """`one` and `saving` are for the separate process of each measurement."""
    if one is not None:
        print(json.dumps(measure(one, height, width, saving)))
        return
    print(
        f"Mask R-CNN at {height}x{width}, batch 1, torch {torch.__version__}, timm {timm.__version__}; MiB", flush=True
    )
    for size in sizes:
        others = {how: in_process(f"pvt_v2_{size}", height, width, fused=how == "fused") for how in PVT}
        for how, other in others.items():
            print(
                f"pvt_v2_{size}, {how:28} activations {other['activations']:7.0f}   whole {other['whole']:7.0f}",
                flush=True,
            )
        for part in ("off", *RECOMPUTABLE_PARTS):
            ours = in_process(f"paca_{size}", height, width, saving=part)
            cells = []
            for kind in ("activations", "whole"):
                shares = ", ".join(f"{ours[kind] / other[kind]:.2f}" for other in others.values())
                cells.append(f"{kind} {ours[kind]:7.0f} ({shares})")
            print(f"paca_{size}, --grad-checkpointing {part:7} {'   '.join(cells)}", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
