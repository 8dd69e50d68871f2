"""Whether a layer is fully described by its weights.

Some of our layers use the weights of another layer without calling it, which is cheaper and equivalent. That is wrong
if the layer was changed: LoRA and quantisation replace the module or its weight, parametrisations change its class, and
hooks (its own or global ones) and replaced `forward` methods must be called.
"""

from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear  # the output layer of nn.MultiheadAttention
from torch.utils.module_tracker import ModuleTracker

PLAIN_LAYERS = (nn.Linear, NonDynamicallyQuantizableLinear, nn.Conv2d, nn.BatchNorm2d, nn.SyncBatchNorm, nn.LayerNorm)


def is_plain(*layers: nn.Module) -> bool:
    """Whether calling each of these layers only does what its class does with ordinary weights."""
    if _has_global_hooks():
        return False
    for layer in layers:
        own = layer.__dict__  # attribute access through the module takes five times as long
        if not _is_plain_class(type(layer)) or _is_watched(own):
            return False
        # By torch's protocol, tensor subclasses such as quantised ones have this method.
        if hasattr(own["_parameters"].get("weight"), "__tensor_flatten__"):
            return False
    return True


def is_divisible(part: nn.Module, *, foreign: bool = False) -> bool:
    """Whether a part of a model, all modules of it, may be given its input piece by piece.

    Not if anything watches a module, nor in training, where pieces would have statistics and random numbers of their
    own. Layers of other kinds than ours and torch's may look at all positions; `foreign` ones are let pass if pieces
    are whole images.
    """
    if _has_global_hooks():
        return False
    for module in part.modules():
        own = module.__dict__
        if own["training"] or _is_watched(own) or own.get("gates") is not None:
            return False
        if not foreign and own["_parameters"] and not (_is_ours(type(module)) or is_plain(module)):
            return False
    return True


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


def _is_watched(own: dict[str, Any]) -> bool:
    hooks = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    return "forward" in own or any(own[kind] for kind in hooks)


def _has_global_hooks() -> bool:
    """Whether there are global module hooks, as made by `register_module_forward_hook`."""
    kinds = (
        torch_module._global_forward_pre_hooks,
        torch_module._global_forward_hooks,
        torch_module._global_backward_pre_hooks,
        torch_module._global_backward_hooks,
    )
    if not any(kinds):
        return False
    # torch's FLOP counter only tracks which module runs, and must count what runs without it.
    return any(
        not isinstance(getattr(hook, "__self__", None), ModuleTracker) for kind in kinds for hook in kind.values()
    )


def _is_plain_class(kind: type) -> bool:
    # torch.export may replace a layer by a stand-in whose class has the same name and module.
    return kind in PLAIN_LAYERS or any(
        kind.__qualname__ == k.__qualname__ and kind.__module__ == k.__module__ for k in PLAIN_LAYERS
    )
