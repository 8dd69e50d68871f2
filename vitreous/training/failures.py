"""Failures of a training step that the settings or the machine caused, as messages of one line."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from vitreous.errors import InputError, limit_reached

# Parts of torch's messages about the variance of a single value.
SINGLE_VALUE_MESSAGES = ("Expected more than 1 value per channel", "Expected more than 1 spatial element")


@contextmanager
def failures_explained() -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (ValueError, RuntimeError, OSError, MemoryError) as reason:
        if any(words in str(reason) for words in SINGLE_VALUE_MESSAGES):
            raise InputError(
                f"{_norm_in(reason)} normalises over the images of a batch, and gets a single value of each "
                "channel; raise --batch-size to 2 or more, lower --accumulate, raise --size, or take a model without "
                "batch norm"
            ) from reason
        limit = limit_reached(reason)
        if limit is not None:
            raise InputError(f"training stopped: {limit}. Checkpoints are intact") from reason
        raise


def _norm_in(error: BaseException) -> str:
    """The norm layer in which an error arose, by its name in the outermost module of the traceback."""
    holders = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [holder for holder in holders if isinstance(holder, nn.Module)]
    norms = [module for module in modules if isinstance(module, _NormBase)]
    if not norms:
        return "a batch norm of the model"
    name = next(name for name, module in modules[0].named_modules() if module is norms[-1])
    return f"layer '{name}' ({type(norms[-1]).__name__})"
