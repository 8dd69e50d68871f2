"""Memory of a pass: every tensor that operations make, from its making until nothing refers to it any more.

It is counted on tensors that have shapes and no values: nothing is computed, the figures do not depend on the machine
or its load, and a pass that would not fit is known before it is tried. What libraries take for themselves within an
operation is not counted. Programs that are not run by torch, or that torch has compiled, are measured by the resident
memory of the process instead.
"""

import ctypes
import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MEBIBYTE = 2**20
PEAK_ENTRY, RESET_PEAK = "/proc/self/clear_refs", b"5"  # of the kernel: sets the peak of the resident memory back


class PassMemory(NamedTuple):
    activations: int  # bytes of all tensors that the pass makes, but for gradients, at the moment when they are most
    whole: int  # with the weights and, in training, the gradients so far and AdamW's two moments


class Allocations(TorchDispatchMode):
    """Bytes of the live storages that operations made; `peak` is the maximum.

    `whole` is the maximum if the gradients, which `drop_gradient` frees at once, had stayed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = self.gradients = self.whole = 0
        self._known: set[int] = set()

    def ignore(self, *tensors: Tensor | None) -> None:
        self._known |= {tensor.untyped_storage()._cdata for tensor in tensors if tensor is not None}

    def drop_gradient(self, parameter: Tensor) -> None:
        """A hook: gradients are not activations."""
        assert parameter.grad is not None
        self.gradients += parameter.grad.nbytes
        parameter.grad = None

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
        self.whole = max(self.whole, self.alive + self.gradients)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.alive -= size


@contextmanager
def counting(model: nn.Module, *ignored: Tensor) -> Iterator[Allocations]:
    """Count what is made within the block; parameters, buffers and what is ignored are not, gradients are dropped."""
    model.zero_grad(set_to_none=True)
    with Allocations() as counted:
        counted.ignore(*ignored, *model.parameters(), *model.buffers())
        hooks = [
            parameter.register_post_accumulate_grad_hook(counted.drop_gradient)
            for parameter in model.parameters()
            if parameter.requires_grad
        ]
        try:
            yield counted
        finally:
            for hook in hooks:
                hook.remove()


def peak_bytes(model: nn.Module, images: Tensor) -> int:
    """Peak bytes of activations in a forward and a backward pass that are computed."""
    with counting(model, images) as counted:
        model(images).sum().backward()
    return counted.peak


@contextmanager
def without_values(mode: FakeTensorMode, *models: nn.Module) -> Iterator[None]:
    """Within the block, parameters and buffers of the models have shapes but no values.

    They are exchanged in place, so that whatever else refers to modules of a model (hooks, loss terms) takes part.
    """
    made: dict[int, Any] = {}
    exchanged: list[tuple[dict[str, Any], str, Tensor]] = []  # where each is held
    for module in (module for model in models for module in model.modules()):
        places: tuple[dict[str, Any], ...] = module._parameters, module._buffers
        for held in places:
            for name, tensor in held.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    fake = mode.from_tensor(tensor.detach())
                    learns = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(fake, requires_grad=tensor.requires_grad) if learns else fake
                exchanged.append((held, name, tensor))
    try:
        for held, name, tensor in exchanged:
            held[name] = made[id(tensor)]
        yield
    finally:
        for held, name, tensor in exchanged:
            held[name] = tensor


def pass_memory(
    model: nn.Module, images: Callable[[], Tensor], run: Callable[[Any, Tensor], Sequence[Tensor]]
) -> PassMemory:
    """Memory of one pass; nothing is computed.

    `images` makes the batch. `run` is given the model, without values, and the images. In training it returns the
    tensors whose sum is minimised, which are held until the end as losses hold them; otherwise none.
    """
    weights = tensor_bytes(model)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with without_values(mode, model), mode:
        batch = images()
        with counting(model, batch) as counted:
            terms = run(model, batch)
            if terms:
                torch.stack([term.sum() for term in terms]).sum().backward()
    moments = 2 * sum(p.nbytes for p in model.parameters() if p.requires_grad) if terms else 0
    return PassMemory(counted.peak, counted.whole + weights + moments)


def tensor_bytes(model: nn.Module) -> int:
    """Of all parameters and buffers."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


# ---- resident memory ---------------------------------------------------------------------------------------------


def resident_growth(run: Callable[[], object], device: torch.device) -> int | None:
    """By how many bytes a run lets the memory of the process, or of a CUDA device, grow at most; None if unknown."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu" or sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    try:
        reset_peak()
        before = status_bytes("VmRSS")
        run()
        return max(0, status_bytes("VmHWM") - before)
    except (OSError, StopIteration):
        return None


def reset_peak() -> None:
    """The most memory that the process holds is counted from now on."""
    entry = os.open(PEAK_ENTRY, os.O_WRONLY)  # no file that could be torn
    try:
        os.write(entry, RESET_PEAK)
    finally:
        os.close(entry)


def status_bytes(name: str) -> int:
    """An entry of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
