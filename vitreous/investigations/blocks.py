"""The maps that the blocks of any classifier give, one after the other.

A block is what stands in a list of blocks: ours and timm's call that list `blocks`, residual networks `layer1`,
encoders `layers` or `layer`; where there is none, stages are taken.
"""

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitreous.attribution.spatial import CONTAINERS, MapPlace, reason_for_none, trace, watch
from vitreous.errors import InputError

LISTS = (r"(.*\.)?blocks(\.\d+)+", r"(.*\.)?layers?\d*(\.\d+)+", r"(.*\.)?stages(\.\d+)+")


def block_places(model: nn.Module, images: Tensor, branches: str | None = None) -> list[MapPlace]:
    """Where the maps of all blocks are, in the order of the network; with those of modules that match `branches`."""
    found = trace(model, images[:1])
    paths = block_paths(model)
    inner = [path for path in found.readable if branches is not None and re.fullmatch(branches, path)]
    places = [place for path, place in found.readable.items() if path in paths or path in inner]
    if not places:
        raise InputError(reason_for_none(model))
    return places


def block_paths(model: nn.Module) -> set[str]:
    """Paths of the outermost modules in the list of blocks."""
    named = {path: module for path, module in model.named_modules() if not isinstance(module, CONTAINERS)}
    for pattern in LISTS:
        found = [path for path in named if re.fullmatch(pattern, path)]
        if found:
            return {path for path in found if not any(path.startswith(f"{other}.") for other in found)}
    return set()


@torch.no_grad()
def block_maps(model: nn.Module, images: Tensor, places: Sequence[MapPlace]) -> dict[str, Tensor]:
    """By path: maps (B, C, H, W) from one pass."""
    with watch(model, *places) as seen:
        model(images)
    return {place.path: place.read(seen[place]).float() for place in places}
