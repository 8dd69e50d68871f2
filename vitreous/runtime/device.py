"""Devices, precision, and settings of the CPU and its memory allocator."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache

import torch

from vitreous.errors import InputError
from vitreous.runtime.bf16_convolution import DefinedGradients

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
ONEDNN_ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"  # environment variable
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's mallopt

_logger = logging.getLogger(__name__)


def choose_device(name: str, *, local_rank: int | None = None) -> torch.device:
    """`auto` prefers CUDA, then Apple's GPU, then the CPU.

    With `local_rank`, each of several processes on one machine takes its own CUDA device.
    """
    if local_rank is not None:
        return _own_device(name, local_rank)
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as reason:
        first_line = str(reason).splitlines()[0]
        raise InputError(
            f"device '{name}' cannot be used ({first_line}); accepted: auto, cpu, cuda, cuda:N, mps"
        ) from reason
    return device


def _own_device(name: str, local_rank: int) -> torch.device:
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device '{name}' cannot be shared by several processes; accepted: auto, cpu, cuda")
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    devices = torch.cuda.device_count()
    if local_rank >= devices:
        raise InputError(
            f"process {local_rank} of this machine finds no CUDA device of its own: there are {devices}; start at most "
            "as many processes as devices (torchrun --nproc-per-node gpu), or use --device cpu"
        )
    return torch.device("cuda", local_rank)


@contextmanager
def autocast(device: torch.device, amp: str) -> Iterator[None]:
    """Mixed precision within the block; `off` changes nothing."""
    if amp == "off":
        yield
        return
    if device.type == "cpu":
        avoid_broken_amx()
    learns_in_bf16 = device.type == "cpu" and amp == "bf16" and torch.is_grad_enabled()
    with torch.autocast(device.type, dtype=PRECISIONS[amp]), DefinedGradients() if learns_in_bf16 else nullcontext():
        yield


def faster_in_bf16(device: torch.device) -> bool:
    """Whether it has instructions for bfloat16; without them mixed precision is slower than single."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and cpu_multiplies_bf16()


@torch.compiler.assume_constant_result
def cpu_multiplies_bf16() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@cache
def avoid_broken_amx() -> None:
    """Keep oneDNN, the CPU matrix library, from instructions that would crash the process.

    Some virtual machines announce Intel's matrix tiles (AMX), yet using them is an illegal instruction. The only way to
    know is to try it in a separate process. oneDNN reads its limit at first use, so call this before.
    """
    if ONEDNN_ISA_VARIABLE in os.environ or not torch.cpu._is_amx_tile_supported():
        return
    attempt = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
    tried = subprocess.run([sys.executable, "-c", attempt], capture_output=True)  # noqa: S603  (a constant)
    if tried.returncode == -signal.SIGILL:
        os.environ[ONEDNN_ISA_VARIABLE] = "AVX512_CORE_FP16"
        _logger.warning(
            "this machine announces matrix tiles (AMX) but cannot use them; mixed precision goes without them"
        )


def keep_freed_memory(device: torch.device) -> None:
    """On the CPU, let the process reuse the memory of freed tensors.

    Otherwise glibc returns large blocks to the system at once and asks for new pages whenever a tensor is made: about a
    tenth of a small model's training time. Peak memory stays about the same.
    """
    if device.type == "cpu" and sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # musl has none
            libc.mallopt(M_MMAP_MAX, 0)
            libc.mallopt(M_TRIM_THRESHOLD, -1)
