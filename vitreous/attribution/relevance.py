"""Layer-wise relevance propagation: every logit divided up among the places it came from, so that the sum is the logit.

Bach et al., "On Pixel-Wise Explanations for Non-Linear Classifier Decisions by Layer-Wise Relevance Propagation", 2015;
for transformers Ali et al., arXiv 2202.07304, and AttnLRP, Achtibat et al., arXiv 2402.05602. With some factors held
fixed a network is a linear function of its patches plus constants, and gradient times input is then the relevance:

    GELU, SiLU, ReLU     y = f(x) x, with f(x) fixed
    norms                the standard deviation is fixed
    softmax, sigmoid     weights are fixed (`lrp`), or have a share in what they weigh (`attn_lrp`)
    products             of two things that depend on the picture: half of the relevance to each
    constants            biases, positions and learned tokens keep what they add, at the place where they add it

The first form sums to the logit up to rounding. AttnLRP asks what the weights themselves hang on, and takes the softmax
to first order: its sum is no longer exact. Both can stop at a stage's map instead of the patches: partial relevance.

Shapes: B images, C channels, H W grid of the patches, N positions.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitreous.attribution.gradient import where, without_weight_gradients
from vitreous.attribution.method import Method, Needs, find_trunk, trunk
from vitreous.attribution.target import Target
from vitreous.errors import InputError

SMALLEST = 1e-12


class Constant(NamedTuple):
    """What a layer adds whatever it is given, as large as its output; the axis of its channels, if it has places."""

    value: Tensor
    channels: int | None


class FixedFactors(TorchFunctionMode):
    """Within the block, functions of torch compute the same values, with the gradients of the rules above."""

    def __init__(self, weights_fixed: bool) -> None:
        super().__init__()
        self.weights_fixed = weights_fixed
        self.constants: list[Constant] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = RELEVANCE_RULES.get(func)
        return func(*args, **(kwargs or {})) if rule is None else rule(self, *args, **(kwargs or {}))

    def keep(self, value: Tensor, channels: int | None) -> Tensor:
        leaf = value.detach().clone().requires_grad_()
        self.constants.append(Constant(leaf, channels))
        return leaf

    def plus(self, y: Tensor, constant: Tensor | float | None, channels: int | None = None) -> Tensor:
        """The sum with something that does not depend on the picture."""
        if constant is None:
            return y
        whole = torch.as_tensor(constant, dtype=y.dtype, device=y.device)
        return y + self.keep(whole.expand(torch.broadcast_shapes(y.shape, whole.shape)), channels)

    # ---- rules ---------------------------------------------------------------------------------------------------

    def linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not input.requires_grad:
            return F.linear(input, weight, bias)
        return self.plus(F.linear(input, weight), bias, -1)

    def conv2d(self, input: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **options: Any) -> Tensor:
        if not input.requires_grad:
            return F.conv2d(input, weight, bias, *rest, **options)
        y = F.conv2d(input, weight, None, *rest, **options)
        return self.plus(y, None if bias is None else bias[:, None, None], 1)

    def layer_norm(
        self, input: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor:
        if not input.requires_grad:
            return F.layer_norm(input, shape, weight, bias, eps)
        axes = tuple(range(-len(shape), 0))
        centred = input - input.mean(axes, keepdim=True)
        y = centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt().detach()
        return self.plus(y if weight is None else y * weight, bias, -1)

    def batch_norm(self, input: Tensor, *arguments: Any, **options: Any) -> Tensor:
        """Outside training a scale and a shift, which its values at zero tell."""
        if not input.requires_grad:
            return F.batch_norm(input, *arguments, **options)
        shift = F.batch_norm(torch.zeros_like(input), *arguments, **options)
        scale = F.batch_norm(torch.ones_like(input), *arguments, **options) - shift
        return self.plus(input * scale, shift, 1)

    def activation(self, function: Callable[..., Tensor], input: Tensor, *rest: Any, **options: Any) -> Tensor:
        y = function(input, *rest, **{name: value for name, value in options.items() if name != "inplace"})
        if not input.requires_grad:
            return y
        return input * (y / torch.where(input.abs() < SMALLEST, SMALLEST, input)).detach()

    def weights(self, function: Callable[..., Tensor], input: Tensor, *rest: Any, **options: Any) -> Tensor:
        y = function(input, *rest, **options)
        return y.detach() if self.weights_fixed else y

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **options: Any
    ) -> Tensor:
        scale = options.get("scale") or query.shape[-1] ** -0.5
        scores = self.product(torch.matmul, query, key.transpose(-2, -1)) * scale
        if attn_mask is not None:
            masked = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if masked else scores + attn_mask
        return self.product(torch.matmul, self.weights(torch.softmax, scores, -1), value)

    def product(self, function: Callable[..., Tensor], first: Any, second: Any) -> Tensor:
        if depends(first) and depends(second):
            return (function(first, second.detach()) + function(first.detach(), second)) / 2
        return function(first, second)

    def quotient(self, first: Any, second: Any, **options: Any) -> Tensor:
        return torch.div(first, second.detach() if depends(second) else second, **options)

    def added(self, first: Any, second: Any, *, alpha: float = 1, **options: Any) -> Tensor:
        if depends(first) == depends(second):
            return torch.add(first, second, alpha=alpha, **options)
        if depends(first):
            return self.plus(first, alpha * second)
        return self.plus(alpha * second, first)

    def subtracted(self, first: Any, second: Any, *, alpha: float = 1, **options: Any) -> Tensor:
        return self.added(first, second, alpha=-alpha, **options)

    def added_product(self, first: Tensor, second: Tensor, third: Tensor, *, value: float = 1) -> Tensor:
        return self.added(first, self.product(torch.mul, second, third), alpha=value)

    def joined(self, tensors: Any, *rest: Any, **options: Any) -> Tensor:
        if any(map(depends, tensors)):
            tensors = [each if depends(each) else self.keep(each, None) for each in tensors]
        return torch.cat(tensors, *rest, **options)

    def sampled(self, input: Tensor, grid: Tensor, *rest: Any, **options: Any) -> Tensor:
        return F.grid_sample(input, grid.detach(), *rest, **options)


def depends(value: Any) -> bool:
    """On the picture: weights have no gradient here."""
    return isinstance(value, Tensor) and value.requires_grad


def _rules() -> dict[Any, Callable[..., Tensor]]:
    """torch calls the same function by several names."""
    rules: dict[Any, Callable[..., Tensor]] = {
        F.linear: FixedFactors.linear,
        F.conv2d: FixedFactors.conv2d,
        F.layer_norm: FixedFactors.layer_norm,
        F.batch_norm: FixedFactors.batch_norm,
        F.scaled_dot_product_attention: FixedFactors.attention,
        F.grid_sample: FixedFactors.sampled,
        torch.addcmul: FixedFactors.added_product,
    }

    def of(rule: Callable[..., Tensor], *functions: Any) -> None:
        for function in functions:
            rules[function] = lambda mode, *args, _call=function, **kwargs: rule(mode, _call, *args, **kwargs)

    of(FixedFactors.activation, F.gelu, F.silu, F.relu, torch.relu, Tensor.relu)
    of(FixedFactors.weights, F.softmax, torch.softmax, Tensor.softmax, torch.sigmoid, Tensor.sigmoid)
    of(FixedFactors.product, torch.mul, Tensor.mul, Tensor.__mul__, torch.matmul, Tensor.matmul, Tensor.__matmul__,
       torch.bmm, Tensor.bmm)  # fmt: skip
    rules |= dict.fromkeys((torch.div, Tensor.div, Tensor.__truediv__), FixedFactors.quotient)
    rules |= dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__), FixedFactors.added)
    rules |= dict.fromkeys((torch.sub, Tensor.sub, Tensor.__sub__), FixedFactors.subtracted)
    rules |= dict.fromkeys((torch.cat, torch.concat), FixedFactors.joined)
    return rules


RELEVANCE_RULES = _rules()


class Relevance(NamedTuple):
    """What a logit is made of: `patches` (B, H, W), `constants` at their places (B, H, W), and those without one.

    `elsewhere` is of pooled features, tokens that belong to no position, and windows.
    """

    patches: Tensor
    constants: Tensor
    elsewhere: Tensor  # (B,)

    @property
    def whole(self) -> Tensor:
        """(B, H, W) of all: what has no place counts for all places alike."""
        return self.patches + self.constants + self.elsewhere[:, None, None] / self.patches[0].numel()

    @property
    def total(self) -> Tensor:
        return self.patches.sum((1, 2)) + self.constants.sum((1, 2)) + self.elsewhere


def relevance(
    model: nn.Module, images: Tensor, target: Target, *, weights_fixed: bool = True, stage: int | None = None
) -> Relevance:
    """Of the target's logit, down to the patches that the stem gives, or to the map of a stage, from one."""
    backbone = trunk(model)
    require_stage(backbone, stage)
    end, channels = (backbone.stem, -1) if stage is None else (backbone.stages[stage - 1].output, 1)
    cut: list[Tensor] = []

    def stop(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        cut.append(output.detach().requires_grad_())
        return cut[-1]

    hook = end.register_forward_hook(stop)
    try:
        with torch.enable_grad(), without_weight_gradients(model), FixedFactors(weights_fixed) as rules:
            score = target.on("logit")(model(images)).sum()
    finally:
        hook.remove()
    patches = cut[-1]
    leaves = [patches, *(constant.value for constant in rules.constants)]
    slopes = torch.autograd.grad(score, leaves, allow_unused=True)
    parts = [
        leaf.detach() * (torch.zeros_like(leaf) if slope is None else slope)
        for leaf, slope in zip(leaves, slopes, strict=True)
    ]
    main = parts[0].sum(channels)
    grid = (main.shape[1], main.shape[2])
    placed, elsewhere = torch.zeros_like(main), main.new_zeros(len(images))
    grids = [tuple(part.shape[1:3]) for part, constant in zip(parts[1:], rules.constants, strict=True)
             if constant.channels == -1 and part.ndim == 4]  # fmt: skip
    for part, constant in zip(parts[1:], rules.constants, strict=True):
        here = on_grid(part, constant.channels, len(images), {grid, *grids})
        if here is None:
            elsewhere = elsewhere + of_each_image(part, len(images))
        else:
            placed = placed + spread_out_evenly(here, grid)
    return Relevance(main, placed, elsewhere)


def require_stage(backbone: Any, stage: int | None) -> None:
    if stage is not None and not 1 <= stage <= len(backbone.stages):
        raise InputError(f"stage {stage} does not exist; this model has stages 1 to {len(backbone.stages)}")


def on_grid(part: Tensor, channels: int | None, images: int, grids: set[tuple[int, int]]) -> Tensor | None:
    """(B, h, w) of what a constant adds, or None if it has no place: of pooled features, windows, learned tokens."""
    if channels is None or len(part) != images:
        return None
    if part.ndim == 4:
        return part.sum(channels)
    fitting = [grid for grid in grids if part.ndim == 3 and grid[0] * grid[1] == part.shape[1]]
    return part.sum(-1).unflatten(1, fitting[0]) if len(fitting) == 1 else None


def of_each_image(part: Tensor, images: int) -> Tensor:
    """Sums (B,); windows of an image are beside each other, and what all images share is divided up."""
    if part.ndim and len(part) % images == 0 and len(part):
        return part.reshape(images, -1).sum(1)
    return (part.sum() / images).expand(images)


def spread_out_evenly(maps: Tensor, grid: tuple[int, int]) -> Tensor:
    """Maps (B, h, w) on a finer or coarser grid, with the same sum."""
    if tuple(maps.shape[1:]) == grid:
        return maps
    h, w = maps.shape[1:]
    if h * w > grid[0] * grid[1]:
        return F.adaptive_avg_pool2d(maps[:, None], grid)[:, 0] * (h * w) / (grid[0] * grid[1])
    numbers = torch.arange(h * w, device=maps.device, dtype=torch.float32).view(1, 1, h, w)
    source = F.interpolate(numbers, grid, mode="nearest").long().flatten()  # whose cell each fine one lies in
    cells = torch.bincount(source, minlength=h * w).clamp_min(1)
    return (maps.flatten(1) / cells)[:, source].unflatten(1, grid)


@dataclass(frozen=True)
class LayerRelevance(Method):
    """`attention`: whether what attention weights hang on has a share (AttnLRP), or they are fixed.

    `constants`: with what biases and positions add, at their places, and evenly what has no place, so that the map sums
    to the logit. `stage`: down to the map of this stage only, from one; by name, `lrp stage 2`.
    """

    attention: bool = False
    constants: bool = True
    stage: int | None = None

    order = 20
    summary = "The logit divided up among the patches it came from, layer by layer."
    needs = Needs(passes=4, gradient=True, spatial=True)

    @property
    def name(self) -> str:
        kind = "attn_lrp" if self.attention else "lrp"
        return kind + ("" if self.constants else "_patches") + where(self.stage, None)

    def at(self, place: str, model: nn.Module) -> "LayerRelevance | None":
        number = re.fullmatch(r"stage (\d+)", place)
        if number is None:
            return None
        require_stage(trunk(model), int(number[1]))
        return replace(self, stage=int(number[1]))

    def missing(self, model: nn.Module) -> str | None:
        reason = super().missing(model)
        if reason is None and find_trunk(model) is None:
            return "its layers are followed in our own families only"
        return reason

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        found = relevance(model, images, target, weights_fixed=not self.attention, stage=self.stage)
        return found.whole if self.constants else found.patches


METHODS = (LayerRelevance(), LayerRelevance(attention=True))
