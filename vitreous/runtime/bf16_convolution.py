"""Convolutions in bfloat16 whose kernels reach beyond a small map.

On CPUs torch 2.15 (oneDNN) leaves the weight gradient of kernel taps that meet nothing but padding as whatever the
memory held: a 3x3 kernel with stride 2 on a map of one cell gets eight such values, and a single one that is not a
number ends a run. These convolutions, which are tiny, are computed in single precision.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack


class DefinedGradients(TorchFunctionMode):
    """Within the block every 2-D convolution under autocast has a defined gradient; all else stays as it is.

    What is computed again in the backward pass must be within `defined_again`, to be computed alike.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options: dict[str, Any] = kwargs or {}
        lowered = func is torch.conv2d and torch.is_autocast_enabled("cpu")
        if not lowered or every_tap_meets_the_map(*args, **options):
            return func(*args, **options)
        with torch.autocast("cpu", enabled=False):
            single: Any = [in_single(value) for value in args]
            named: Any = {name: in_single(value) for name, value in options.items()}
            return func(*single, **named)


def defined_again() -> AbstractContextManager[object]:
    """For a part of a network whose forward pass is computed a second time: the same as there is now."""
    modes = _get_current_function_mode_stack()
    return DefinedGradients() if any(isinstance(mode, DefinedGradients) for mode in modes) else nullcontext()


def in_single(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value


def every_tap_meets_the_map(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> bool:
    """Whether each tap of the kernel lies on the map, not on padding, in at least one of its places."""
    if isinstance(
        padding, str
    ):  # "same" or "valid": the middle lies on the map, so that the ends meet it if it is as wide
        return all(
            side > step * (kernel - 1)
            for side, kernel, step in zip(input.shape[-2:], weight.shape[-2:], pair(dilation), strict=True)
        )
    axes = zip(input.shape[-2:], weight.shape[-2:], pair(stride), pair(padding), pair(dilation), strict=True)
    return all(axis_is_met(*axis) for axis in axes)


def axis_is_met(side: int, kernel: int, stride: int, padding: int, dilation: int) -> bool:
    if side - dilation * (kernel - 1) >= stride:
        return True  # in one of its places all of the kernel lies on the map
    places = (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    if padding == 0 or places < 1:
        return True
    starts = range(-padding, places * stride - padding, stride)
    return all(any(0 <= start + dilation * tap < side for start in starts) for tap in range(kernel))


def pair(value: int | Sequence[int]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else (*value, *value) if len(value) == 1 else tuple(value)
