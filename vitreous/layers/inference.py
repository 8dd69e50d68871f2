"""Plain forward passes on a CPU, where an equivalent but cheaper path may be taken: oneDNN's products with GELU.

Linear layers in single precision: torch gives them to MKL, which on a core of AMD's Zen 4 multiplies 43 to 51 GMAC/s,
where oneDNN, which torch has for other types of numbers, multiplies 48 to 56 (392 to 6,272 rows, 96 to 1,536 channels;
the core can do 57). oneDNN also computes GELU while a product, or the map of a convolution, is in cache, where torch
takes twice as long for it as for a depth-wise convolution.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from vitreous.layers.plain import is_plain

ORDINARY = (Tensor, nn.Parameter)  # kinds of weights
LEAST_PRODUCT = 16 << 20  # multiply-adds; for smaller products oneDNN takes as long to prepare as it saves


def eager_inference(x: Tensor) -> bool:
    """Whether this is a plain forward pass on a CPU.

    Nothing is being traced or compiled then, so code may branch on sizes.
    """
    traced = not isinstance(x, Tensor) or torch.compiler.is_compiling() or torch.jit.is_tracing()
    return not (traced or torch.is_grad_enabled()) and x.device.type == "cpu"


def linear(layer: Any, x: Tensor, *, gelu: bool = False) -> Tensor:
    """`layer(x)`, and GELU of that, by the faster library where the layer is an ordinary one."""
    if onednn_is_for(x) and is_plain(layer) and worth_onednn(x, layer.weight, layer.bias):
        return onednn_product(x, layer.weight, layer.bias, gelu=gelu)
    y = layer(x)
    return F.gelu(y) if gelu else y


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What a linear layer with these weights gives."""
    faster = onednn_is_for(x) and worth_onednn(x, weight, bias)
    return onednn_product(x, weight, bias) if faster else F.linear(x, weight, bias)


def depthwise_gelu(x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    """GELU of a 3x3 depth-wise convolution, its border filled with zeros, on images (B, C, H, W)."""
    if not onednn_is_for(x) or not onednn_takes(kernel, bias):
        return F.gelu(F.conv2d(x, kernel, bias, padding=1, groups=len(kernel)))
    return onednn_depthwise(x, kernel, bias)


def worth_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return x.numel() * len(weight) >= LEAST_PRODUCT and onednn_takes(weight, bias)


def onednn_takes(weight: Tensor, bias: Tensor | None) -> bool:
    """Whether these are ordinary weights; a bias it would read as if its numbers lay side by side."""
    if type(weight) not in ORDINARY or weight.layout != torch.strided or weight.dtype != torch.float32:
        return False
    known = bias is None or (type(bias) in ORDINARY and bias.dtype == torch.float32)
    return known and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None, *, gelu: bool = False) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu" if gelu else "none", [], "none")


def onednn_depthwise(x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    beside, step = (1, 1), (1, 1)
    return torch.ops.mkldnn._convolution_pointwise(x, kernel, bias, beside, step, step, len(kernel), "gelu", [], "none")


def onednn_is_for(x: Tensor) -> bool:
    """Whether its operations may be used on x: they are not for training, other types of numbers, or modes of torch."""
    if not eager_inference(x) or type(x) is not Tensor or x.dtype != torch.float32 or not onednn_is_faster():
        return False
    if x.numel() == 0 or torch.is_autocast_enabled("cpu") or not torch.backends.mkldnn.enabled:
        return False
    # Those who watch or count operations know torch's, and transforms and derivatives have rules for these.
    watched = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
    transformed = torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    return not watched and not transformed


@cache
def onednn_is_faster() -> bool:
    return (
        torch.backends.mkldnn.is_available()
        and torch.cpu._is_avx512_supported()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
