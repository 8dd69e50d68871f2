"""Where the numbers are crunched, and in which precision."""

from contextlib import AbstractContextManager, nullcontext

import torch

from vitreous.errors import InputError

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(name: str) -> torch.device:
    """`auto` takes a CUDA device, else Apple's, else the CPU."""
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


def autocast(device: torch.device, amp: str) -> AbstractContextManager[object]:
    """Mixed precision for the block; `off` changes nothing."""
    if amp == "off":
        return nullcontext()
    return torch.autocast(device.type, dtype=PRECISIONS[amp])
