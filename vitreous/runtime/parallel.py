"""One model on several processes: a copy on each of them (DDP), or a part of it on each (FSDP2).

Either way gradients are averaged over the processes: to sum over a shared batch, multiply by their number.
"""

import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from vitreous.errors import InputError

SHARDED_LISTS = ("stages", "blocks", "layers")  # lists of modules, each of which FSDP gathers on its own


class _Copy(nn.Module):
    """The model and an unused parameter. DDP looks for unused parameters, and warns if there are none."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.unused = nn.Parameter(torch.zeros((), device=next(model.parameters()).device))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


def replicate(model: nn.Module, device: torch.device) -> DistributedDataParallel:
    """The model wrapped in DDP: a backward pass leaves the average of all processes' gradients.

    DDP orders its gradient buckets by the first backward pass, and with three or more processes the order decides how
    sums are rounded. `find_unused_parameters` is the only public option that keeps the order, and with it the bits, the
    same after a restart.
    """
    # Synchronised batch norms keep their statistics equal by themselves.
    known = inspect.signature(DistributedDataParallel).parameters
    sync = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    device_ids = [device] if device.type == "cuda" else None
    # Kernels with one channel have two equivalent memory layouts.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    options: dict[str, Any] = {"find_unused_parameters": True, "gradient_as_bucket_view": True, sync: False}
    return DistributedDataParallel(_Copy(model), device_ids=device_ids, **options)


def require_shardable(model: nn.Module, processes: int) -> None:
    if processes == 1:
        raise InputError(
            "--shard splits a model among several processes, but there is only one; start more "
            "(torchrun --nproc-per-node 2 -m vitreous train …), or leave it out"
        )
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise InputError(f"--shard cannot split the scalar {name}; train this model without it")


def shard(model: nn.Module, device: torch.device) -> None:
    """Split every parameter by rows among the processes, in place; a unit is gathered only while it computes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    # Our blocks return views on purpose, and never change their input in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    for unit in [*_units(model), model]:
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)


def _units(model: nn.Module) -> Iterator[nn.Module]:
    """Inner modules first, as FSDP requires."""
    for name, module in reversed(list(model.named_modules())):
        holder, _, number = name.rpartition(".")
        if number.isdigit() and holder.endswith(SHARDED_LISTS) and any(True for _ in module.parameters()):
            yield module


def is_sharded(model: nn.Module) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def local_part(tensor: Tensor) -> Tensor:
    """The rows of a tensor that this process holds: all, unless it is sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_rows(tensor: Tensor) -> slice:
    """Which rows of a sharded tensor this process holds."""
    assert isinstance(tensor, DTensor)
    rows, each = len(tensor), -(-len(tensor) // dist.get_world_size())
    start = min(rows, dist.get_rank() * each)
    mine = slice(start, min(rows, start + each))
    assert mine.stop - mine.start == len(tensor.to_local())
    return mine


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor with the rows of all processes; all processes must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
