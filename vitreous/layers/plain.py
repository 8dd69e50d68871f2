"""Whether a layer's weights say all there is to know about it.

Some of our layers use the weights of another layer without calling it, which is cheaper and equal. It is wrong where
somebody changed that layer: LoRA and quantisation put another module or another kind of weight in its place,
parametrisations change its class, hooks (its own, or those for all modules) and replaced `forward` methods expect to be
called.
"""

from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear  # the output layer of nn.MultiheadAttention
from torch.utils.module_tracker import ModuleTracker

PLAIN_LAYERS = (nn.Linear, NonDynamicallyQuantizableLinear, nn.Conv2d, nn.BatchNorm2d, nn.SyncBatchNorm)


def is_plain(*layers: nn.Module) -> bool:
    """Whether calling each of these layers would do nothing but what its class does with ordinary weights."""
    if _every_module_is_watched():
        return False
    for layer in layers:
        own = layer.__dict__  # reading attributes by way of the module takes five times as long, in every forward pass
        if not _is_plain_class(type(layer)) or "forward" in own:
            return False
        if own["_forward_pre_hooks"] or own["_forward_hooks"] or own["_backward_pre_hooks"] or own["_backward_hooks"]:
            return False
        # Tensors that stand for others, such as quantised ones, have this method by torch's protocol.
        if hasattr(own["_parameters"].get("weight"), "__tensor_flatten__"):
            return False
    return True


def _every_module_is_watched() -> bool:
    """Whether there are hooks for all modules at once, as `register_module_forward_hook` makes them."""
    kinds = (
        torch_module._global_forward_pre_hooks,
        torch_module._global_forward_hooks,
        torch_module._global_backward_pre_hooks,
        torch_module._global_backward_hooks,
    )
    if not any(kinds):
        return False
    # torch's counter of operations only asks which module runs, and must count what runs without it.
    return any(
        not isinstance(getattr(hook, "__self__", None), ModuleTracker) for kind in kinds for hook in kind.values()
    )


def _is_plain_class(kind: type) -> bool:
    # torch.export may look at a layer through a stand-in whose class has the same name in the same module.
    return kind in PLAIN_LAYERS or any(
        kind.__qualname__ == k.__qualname__ and kind.__module__ == k.__module__ for k in PLAIN_LAYERS
    )
