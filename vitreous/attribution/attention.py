"""Attention weights of transformers that are not ours: timm's, torch's own layer, and those of `transformers`.

    with record_attention(model) as seen:
        model(images)
    seen["blocks.11.attn"]                     # (B, h, queries, keys)

Within the block attention is computed step by step, as fused kernels keep no weights; afterwards all is as it was.

Shapes: B images, h heads.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """What every attention layer used in the last pass, by the path of the layer, in the order of the network."""
    seen: dict[str, Tensor] = {}

    def keep(path: str, weights: Any) -> None:
        if isinstance(weights, Tensor) and weights.ndim == 4:
            seen.pop(path, None)
            seen[path] = weights

    with ExitStack() as cleanup:
        for path, module in model.named_modules():
            dropout = getattr(module, "attn_drop", None)
            if isinstance(module, nn.MultiheadAttention):
                cleanup.callback(module.register_forward_pre_hook(ask_for_weights, with_kwargs=True).remove)
                cleanup.callback(module.register_forward_hook(lambda _m, _i, out, path=path: keep(path, out[1])).remove)
            elif isinstance(dropout, nn.Module):  # timm's layers put their weights through it
                cleanup.callback(dropout.register_forward_hook(lambda _m, _i, out, path=path: keep(path, out)).remove)
                if getattr(module, "fused_attn", False):
                    cleanup.callback(setattr, module, "fused_attn", True)
                    module.fused_attn = False
            elif hasattr(module, "set_attn_implementation"):  # a model of `transformers`
                cleanup.enter_context(step_by_step(module))
                for inner, layer in module.named_modules(prefix=path):
                    if type(layer).__name__.endswith("Attention"):
                        hook = layer.register_forward_hook(lambda _m, _i, out, path=inner: keep(path, second(out)))
                        cleanup.callback(hook.remove)
        yield seen


def ask_for_weights(_module: nn.Module, inputs: tuple, options: dict) -> tuple[tuple, dict]:
    return inputs, {**options, "need_weights": True, "average_attn_weights": False}


def second(output: Any) -> Any:
    return output[1] if isinstance(output, tuple) and len(output) > 1 else None


@contextmanager
def step_by_step(model: Any) -> Iterator[None]:
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
