"""A small member of every family, and what tests need of it: few blocks, and weights that leave no part silent."""

import copy
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

import vitreous  # noqa: F401  (registers the models)
from vitreous.data.transforms import Preprocess
from vitreous.registry import ENTRIES
from vitreous.runs.model_folder import save_model

ONE_OF_EACH = ("paca_tiny", "paca_b0", "xcit_nano_12_p16", "emsnet_xxtiny", "mat_1", "partialformer_b0")
FAMILIES = (
    *ONE_OF_EACH,
    "paca_tiny_teacher",
    "paca_b0_cifar",
    "paca_b0_readout",
    "xcit_nano_12_p8",
)  # what differs in kind


def short(name: str, blocks: int = 1) -> dict[str, Any]:
    """Arguments for at most `blocks` blocks per stage: the same kinds of layers, built and run in a moment."""
    full = ENTRIES[name].arguments
    if "depths" in full:
        return {"depths": tuple(min(depth, blocks) for depth in full["depths"])}
    return {"depth": 4, "ends": (0, 1, 2, 3)}  # a column of equal blocks needs only one for each stage


BUILT: dict[tuple, tuple[nn.Module, Tensor]] = {}  # how and from which random numbers -> the model and those after it
MOST_BUILT = 32


def small(name: str, blocks: int = 2, **arguments: Any) -> nn.Module:
    """A model with few blocks; a copy of the first one where the same was built from the same random numbers before."""
    arguments = {**short(name, blocks), "num_classes": 5, **arguments}
    if name not in FAMILIES or {"checkpoint_path", "pretrained"} & arguments.keys():  # files may change
        return timm.create_model(name, **arguments)
    place = torch.get_default_device(), torch.get_default_dtype()
    key = (name, repr(arguments), *place, torch.get_rng_state().numpy().tobytes())
    if key not in BUILT:
        if len(BUILT) == MOST_BUILT:
            del BUILT[next(iter(BUILT))]  # the oldest
        BUILT[key] = timm.create_model(name, **arguments), torch.get_rng_state()
    model, numbers = BUILT[key]
    torch.set_rng_state(numbers)
    return copy.deepcopy(model)


def save_small(
    folder: Path, name: str, *, classes: tuple[str, ...] = ("ant", "bee", "cat"), **arguments: Any
) -> nn.Module:
    """A model folder as `vitreous train` leaves it; returns the model that is in it."""
    model = small(name, 1, num_classes=len(classes), **arguments).eval()
    save_model(
        folder,
        model,
        name=name,
        model_args={**short(name), **arguments},
        task="classify",
        classes=classes,
        preprocess=Preprocess((64, 64)),
    )
    return model


def awake(model: nn.Module) -> nn.Module:
    """The model with every parameter and statistic away from its start, where some parts are silent."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.5
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator).to(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0, generator=generator)
    return model


def assert_trains(model: nn.Module, sizes: Iterable[tuple[int, int]]) -> None:
    """A backward pass at every size reaches every parameter."""
    model.train()
    for size in sizes:
        model.zero_grad()
        outputs = model(torch.randn(2, 3, *size))
        assert torch.isfinite(outputs).all()
        outputs.square().mean().backward()
        assert_every_parameter_has_a_gradient(model)


def assert_every_parameter_has_a_gradient(model: nn.Module) -> None:
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    without = [name for name, gradient in gradients.items() if gradient is None]
    assert not without, f"no gradient: {without}"
    broken = [name for name, gradient in gradients.items() if not torch.isfinite(gradient).all()]
    assert not broken, f"gradient not finite: {broken}"


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    return list(itertools.chain.from_iterable(map(tensors, value))) if isinstance(value, list | tuple) else []


def assert_whole(model: nn.Module) -> None:
    """A state dict holds all there is; a constant kept besides is on no device but the CPU."""
    beyond = dict(model.named_buffers()).keys() - model.state_dict().keys()
    assert not beyond, f"buffers that no file brings back: {beyond}"
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            kept = [] if name in ("_parameters", "_buffers", "_modules") else tensors(value)
            assert all(tensor.device.type == "cpu" for tensor in kept), f"{path}.{name}"
