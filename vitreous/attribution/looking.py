"""What any head of any block reads from a place of the picture.

    reads = read_from(model, images, query=(0.4, 0.6))   # {layer: (B, h, H, W)}

What a query reads is a map over its keys. Where keys are clusters, a query reads each position as much as it reads the
clusters that the position belongs to. The class token of XCiT, the abstract tokens of MAT and PartialFormer's single
query have no place of their own: their maps are the same whatever the query. `vitreous analyze attention` shows all of
them on a sheet; as a method, `attention LAYER head 2 from 0.4 0.6` is one of them, beside what mattered.

Shapes: B images, h heads, K keys, H W grid.
"""

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitreous.attribution.attention import record_attention
from vitreous.attribution.method import Method, Needs, find_trunk
from vitreous.attribution.spatial import anatomy
from vitreous.attribution.target import Target
from vitreous.errors import InputError
from vitreous.layers.tap import record, tap_names

READS = r"(.*\.)?(attention\.map|abstract_attn|attention\.abstract|attention\.background|global_attention\.map|centre)"
IN_WINDOW = 9  # of local attention, the middle included
PictureSpot = tuple[float, float]  # across and down, from 0 to 1
MIDDLE: PictureSpot = (0.5, 0.5)
CHOICE = re.compile(r"(?P<layer>\S+?)?(?: ?\bhead (?P<head>\d+))?(?: ?\bfrom (?P<x>[\d.]+) (?P<y>[\d.]+))?")


@torch.no_grad()
def read_from(model: nn.Module, images: Tensor, query: PictureSpot = MIDDLE) -> dict[str, Tensor]:
    """What the query reads, (B, h, H, W) of each layer that attends to places, by one forward pass."""
    backbone = find_trunk(model)
    if backbone is None:
        return foreign_reads(model, images, query)
    names = [name for name in tap_names(backbone) if re.fullmatch(READS, name)]
    if not names:
        raise InputError(f"{type(backbone).__name__} attends to channels or windows, not to places of the picture")
    clusters = [name for name in tap_names(backbone) if re.search(r"clusters(\.\d+)?$", name)]
    with record(backbone, *names, *clusters) as seen:
        model(images)
    found = {name: places_read(name, seen, clusters, query) for name in names}
    return {name: maps for name, maps in found.items() if maps is not None}


def places_read(name: str, seen: dict[str, Tensor], clusters: list[str], query: PictureSpot) -> Tensor | None:
    """(B, h, H, W), or None where the keys are no places."""
    maps = seen[name].float()
    if maps.ndim == 4:  # one query for all
        return maps
    grid = (maps.shape[3], maps.shape[4])
    weights = maps[..., int(query[1] * grid[0]), int(query[0] * grid[1])]  # (B, h, K)
    if weights.shape[2] == math.prod(grid):
        return weights.unflatten(2, grid)
    stage = name.split(".blocks.")[0]
    own = [tap for tap in clusters if tap.startswith(stage) and tap in seen]
    if own and seen[own[-1]].shape[1] == weights.shape[2]:
        return torch.einsum("bhk,bkyx->bhyx", weights, seen[own[-1]].float())
    return weights.unflatten(2, (3, 3)) if weights.shape[2] == IN_WINDOW else None


def foreign_reads(model: nn.Module, images: Tensor, query: PictureSpot) -> dict[str, Tensor]:
    places = anatomy(model, images).attention
    if not places:
        raise InputError(f"{type(model).__name__} has no attention over whole pictures that can be recorded")
    with record_attention(model) as seen:
        model(images)
    found = {}
    for place in places:
        rows = seen[place.path].float()  # (B, h, queries, keys)
        number = place.prefix + int(query[1] * place.grid[0]) * place.grid[1] + int(query[0] * place.grid[1])
        row = rows[:, :, number if place.by_all else 0, place.prefix :]
        found[place.path] = row.unflatten(2, place.grid)
    return found


def chosen_layers(layers: dict[str, Tensor], part: str | None) -> dict[str, Tensor]:
    """Those with this in their name."""
    if part is None:
        return layers
    found = {name: maps for name, maps in layers.items() if part in name}
    if not found:
        raise InputError(f"{part!r} is part of no layer's name; layers: {', '.join(layers)}")
    return found


def head_number(head: int, maps: Tensor, layer: str) -> int:
    """From zero; the maps are (B, h, H, W)."""
    if not 1 <= head <= maps.shape[1]:
        raise InputError(f"head {head} does not exist; {layer} has heads 1 to {maps.shape[1]}")
    return head - 1


@dataclass(frozen=True)
class AttentionFrom(Method):
    """The last layer with `layer` in its name, the mean over heads unless one is given, from the middle by default."""

    layer: str | None = None
    head: int | None = None
    query: PictureSpot = MIDDLE

    order = 35
    summary = "What a head reads from a place; it does not know what is explained."
    needs = Needs(passes=1, target=False, spatial=True)

    @property
    def name(self) -> str:
        parts = ["attention", self.layer, None if self.head is None else f"head {self.head}"]
        parts += [None if self.query == MIDDLE else "from {:g} {:g}".format(*self.query)]
        return " ".join(part for part in parts if part)

    def at(self, place: str, model: nn.Module) -> "AttentionFrom":
        """The layer, the head and the query in words, each if given: `stages.2 head 3 from 0.4 0.6`."""
        found = CHOICE.fullmatch(place)
        if found is None:
            raise InputError(f"attention {place!r} given; give a part of a layer's name, head 2, from 0.4 0.6")
        query = MIDDLE if found["x"] is None else (float(found["x"]), float(found["y"]))
        if not all(0 <= part < 1 for part in query):
            raise InputError(f"attention {place!r} is from outside of the picture; give two numbers from 0 to 0.99")
        return AttentionFrom(found["layer"], None if found["head"] is None else int(found["head"]), query)

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        layer, maps = list(chosen_layers(read_from(model, images, self.query), self.layer).items())[-1]
        return maps.mean(1) if self.head is None else maps[:, head_number(self.head, maps, layer)]


BY_NAME = (AttentionFrom(),)
