"""Peak memory of activations in a training step, with and without `--grad-checkpointing`.

    python benchmarks/memory.py                                  # paca_small at 512x512
    python benchmarks/memory.py --model xcit_small_12_p16 --size 384 --batch 4

Every tensor that an operation allocates is counted from its making until nothing refers to it any more; parameters,
their gradients and the images are not counted. The figures are exact and do not depend on the machine or its load;
how much longer a step takes is measured, in processor time.
"""

import statistics
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import timm
import torch
import tyro
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vitreous.models.base import RECOMPUTABLE_PARTS, Backbone


class Allocations(TorchDispatchMode):
    """Bytes of the live storages that operations made; `peak` is the maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self._known: set[int] = set()

    def ignore(self, *tensors: Tensor | None) -> None:
        self._known |= {tensor.untyped_storage()._cdata for tensor in tensors if tensor is not None}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.alive -= size


@contextmanager
def gradients_dropped(model: nn.Module) -> Iterator[None]:
    """Free each gradient at once: gradients are not activations."""
    model.zero_grad(set_to_none=True)
    handles = [parameter.register_post_accumulate_grad_hook(_drop) for parameter in model.parameters()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _drop(parameter: Tensor) -> None:
    parameter.grad = None


def peak_bytes(model: nn.Module, images: Tensor) -> int:
    """Peak bytes of activations in a forward and a backward pass."""
    with Allocations() as counted, gradients_dropped(model):
        counted.ignore(images, *model.parameters(), *model.buffers())
        model(images).sum().backward()
    return counted.peak


def step_seconds(model: nn.Module, images: Tensor, rounds: int) -> float:
    """Median processor time of a forward and a backward pass."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        model(images).sum().backward()
        times.append(time.process_time() - start)
    return statistics.median(times)


def main(model: str = "paca_small", size: int = 512, batch: int = 1, rounds: int = 3) -> None:
    torch.manual_seed(0)
    images = torch.randn(batch, 3, size, size)
    network = timm.create_model(model).train()
    plain, seconds = peak_bytes(network, images), step_seconds(network, images, rounds)
    print(f"{model} at {size}x{size}, batch {batch}, torch {torch.__version__}:")
    print(f"  plain                        {plain / 2**20:8.1f} MiB")
    for part in RECOMPUTABLE_PARTS if isinstance(network, Backbone) else RECOMPUTABLE_PARTS[:1]:
        network.set_grad_checkpointing(True, **{"part": part} if isinstance(network, Backbone) else {})
        saving, longer = peak_bytes(network, images), step_seconds(network, images, rounds) / seconds
        cells = f"{saving / 2**20:8.1f} MiB, {1 - saving / plain:.1%} less; a step takes {longer:.2f} times as long"
        print(f"  --grad-checkpointing {part:7} {cells}", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
