"""Where the numbers are crunched, and in which precision."""

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

from vitreous.errors import InputError

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
ONEDNN_LIMIT = "ONEDNN_MAX_CPU_ISA"  # environment variable
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's mallopt


def choose_device(name: str, *, local_rank: int | None = None) -> torch.device:
    """`auto` takes a CUDA device, else Apple's, else the CPU.

    Of several processes on one machine, each with its `local_rank`, every one takes its own CUDA device.
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


def autocast(device: torch.device, amp: str) -> AbstractContextManager[object]:
    """Mixed precision for the block; `off` changes nothing."""
    if amp == "off":
        return nullcontext()
    if device.type == "cpu":
        avoid_broken_amx()
    return torch.autocast(device.type, dtype=PRECISIONS[amp])


@cache
def avoid_broken_amx() -> None:
    """Keep oneDNN, which multiplies matrices on the CPU, from instructions that would end the process.

    Some virtual machines announce Intel's matrix tiles (AMX) though using them is an illegal instruction. Only a try
    tells, and only in a process of its own. oneDNN reads its limit when it is first used, so this must come before.
    """
    if ONEDNN_LIMIT in os.environ or not torch.cpu._is_amx_tile_supported():
        return
    attempt = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
    tried = subprocess.run([sys.executable, "-c", attempt], capture_output=True)  # noqa: S603  (our own words)
    if tried.returncode == -signal.SIGILL:
        os.environ[ONEDNN_LIMIT] = "AVX512_CORE_FP16"
        note = "matrix tiles (AMX) are announced by this machine but cannot be used; mixed precision goes without them"
        print(note, file=sys.stderr)


def keep_freed_memory(device: torch.device) -> None:
    """On the CPU, let the process keep the memory of tensors that are gone, for those of the next step.

    Otherwise glibc returns large pieces to the system at once, and asks for new pages whenever a tensor is made: about
    a tenth of a small model's training time. The most memory that is ever in use stays about the same.
    """
    if device.type == "cpu" and sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # musl has none
            libc.mallopt(M_MMAP_MAX, 0)
            libc.mallopt(M_TRIM_THRESHOLD, -1)
