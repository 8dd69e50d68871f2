"""Watches a model for copies of data."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Copies(TorchDispatchMode):
    """Notes every operation that moves data without computing, and inputs a kernel would have to rearrange first."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.seen: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__.split(".")[0]
        self.seen.add(name)
        if name in {"clone", "copy_", "_to_copy", "contiguous"}:
            self.found.append(name)
        if name == "convolution" and not args[0].is_contiguous(memory_format=torch.channels_last):
            self.found.append("convolution of a map that is not channels-last")
        if name in {"native_layer_norm", "gelu", "addmm"}:
            tensor = args[1] if name == "addmm" else args[0]
            dense = tensor.is_contiguous() or (
                name == "gelu" and tensor.is_contiguous(memory_format=torch.channels_last)
            )
            if not dense:
                self.found.append(f"{name} of rearranged tokens")
        return function(*args, **(kwargs or {}))
