"""One model on several processes: a copy on each of them (DDP), or a part of it on each (FSDP2).

Either way gradients are averaged over the processes: to sum over a shared batch, multiply by their number. Batch norms
take the statistics of the whole batch, however many processes share it. Torch has such norms for GPUs. Those here are
for CPUs: each process sends the count, mean and variance of its images, and all combine them in the same order, so that
they compute the same bits.

C channels, W processes
"""

import inspect
import re
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from timm.layers import BatchNormAct2d, convert_sync_batchnorm
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from vitreous.errors import InputError

SHARDED_UNIT = re.compile(r"(?:stages|blocks|layers)\.\d+$")  # a module that FSDP gathers on its own


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
    for name, module in reversed(list(model.named_modules())):  # inner modules first, as FSDP requires
        if module is model or (SHARDED_UNIT.search(name) and any(True for _ in module.parameters())):
            fully_shard(module, mesh=mesh, reshard_after_forward=True)


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


# ---- batch norm ---------------------------------------------------------------------------------------------------


def synchronise_norms(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with synchronised batch norms; parameters keep their names."""
    if device.type == "cuda":
        return convert_sync_batchnorm(model)
    for module in model.modules():
        if isinstance(module, BatchNormAct2d):
            module.__class__ = SyncedBatchNormAct  # type: ignore[assignment]
        elif isinstance(module, _BatchNorm):
            module.__class__ = SyncedBatchNorm
    return model


class SyncedBatchNorm(_BatchNorm):
    """Like BatchNorm1d, 2d and 3d; outside training nothing is exchanged."""

    def _check_input_dim(self, input: Tensor) -> None:
        pass  # any: statistics are taken over all axes but the second

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        y, count, mean, variance = _Normalise.apply(input, self.weight, self.bias, self.eps)
        if self.track_running_stats:
            self._track(count, mean, variance)
        return y

    @torch.no_grad()
    def _track(self, count: Tensor, mean: Tensor, variance: Tensor) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked += 1
        momentum = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance * (count / (count - 1)), momentum)


class SyncedBatchNormAct(SyncedBatchNorm):
    """timm's batch norm with an activation behind it."""

    drop: nn.Module
    act: nn.Module

    def forward(self, input: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(input)))


class _Normalise(torch.autograd.Function):
    """(x, weight, bias, eps) -> (normalised x, and of all processes' x: count, mean, variance)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, ...]:
        count, mean, variance = _statistics(x)
        ctx.save_for_backward(x, weight, mean, (variance + eps).rsqrt())
        ctx.count = count
        y = F.batch_norm(x, mean, variance, weight, bias, eps=eps)
        ctx.mark_non_differentiable(count, mean, variance)
        return y, count, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale = ctx.saved_tensors
        axes = _all_but_channels(x)
        normalised = (x.float() - _along(mean, x)) * _along(scale, x)
        own = torch.stack([dy.float().sum(axes), (dy * normalised).sum(axes)])  # (2, C): of bias and weight
        everyones = own.clone()
        dist.all_reduce(everyones)
        shift, slope = everyones / ctx.count
        dx = dy - _along(shift, x) - normalised * _along(slope, x)
        dx = dx * _along(scale if weight is None else scale * weight, x)
        return dx.to(x.dtype), None if weight is None else own[1], None if weight is None else own[0], None


def _statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count (), mean (C) and variance (C) over the images of all processes."""
    variance, mean = torch.var_mean(x.float(), _all_but_channels(x), correction=0)
    own = torch.cat([mean.new_tensor([x.numel() // x.shape[1]]), mean, variance]).double()
    gathered = own.new_empty(dist.get_world_size(), len(own))
    dist.all_gather_into_tensor(gathered.view(-1), own)
    counts, means, variances = gathered.split([1, len(mean), len(mean)], dim=1)  # (W, 1), (W, C), (W, C)
    count = counts.sum()
    mean = (counts * means).sum(0) / count
    variance = (counts * (variances + (means - mean).square())).sum(0) / count
    return count.float(), mean.float(), variance.float()


def _all_but_channels(x: Tensor) -> list[int]:
    return [axis for axis in range(x.ndim) if axis != 1]


def _along(per_channel: Tensor, x: Tensor) -> Tensor:
    """(C) in a shape that multiplies x."""
    return per_channel.view(1, -1, *[1] * (x.ndim - 2))
