"""What kind of program torch.export is making of a layer, if any.

A program for one size is followed with sizes that are numbers, so that code may branch on them as it does in eager
inference. In a program for any size they are symbols, and everything must be one formula for all of them.
"""

import torch
from torch import Tensor


def exports_any_size(x: Tensor) -> bool:
    return torch.compiler.is_exporting() and _has_symbols(x)


def exports_one_size(x: Tensor) -> bool:
    return torch.compiler.is_exporting() and not _has_symbols(x)


def _has_symbols(x: Tensor) -> bool:
    return any(isinstance(size, torch.SymInt) for size in x.shape)
