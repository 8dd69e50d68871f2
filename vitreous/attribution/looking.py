"""What any head of any block reads from a place of the picture.

    reads = read_from(model, images, query=(0.4, 0.6))   # {layer: (B, h, H, W)}; without a query, the mean over all

What a query reads is a map over its keys. Where keys are clusters, a query reads each position as much as it reads the
clusters that the position belongs to; where they are windows (MAT's `fusion_attn`) or cells (EMSNet), all positions of
one alike. A query in a window (MAT's `window_attn`, EMSNet's local attention) reads nothing outside. In PartialFormer
(`mixed`) a place of the foreground reads the foreground, and one of the background what the single query reads.
The class token of XCiT, the abstract tokens and that single query have no place of their own: their maps are the same
whatever the query. `vitreous analyze attention` shows all of them on a sheet; as a method, `attention LAYER head 2 from
0.4 0.6` is one of them, beside what mattered.

Shapes: B images, h heads, K keys, F foreground tokens, H W grid; H' W' cells or windows.
"""

import re
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.attention import record_attention
from vitreous.attribution.method import Method, Needs, find_trunk
from vitreous.attribution.spatial import AttentionPlace, anatomy
from vitreous.attribution.target import Target
from vitreous.errors import InputError
from vitreous.layers.pooled import WINDOW_SIDE, cell_count
from vitreous.layers.tap import record, tap_names

ONE_QUERY = (
    r"readout\..*attention\.map|class_blocks\..*attention\.map|.*\.abstract_attn|.*attention\.(abstract|background)"
)
BY_PLACE = r".*\.attention\.(map|mixed|fusion_attn|window_attn)|.*\.(local|global)_attention\.map"
WHERE_KEYS_ARE = r".*clusters(\.\d+)?|.*attention\.(positions|score|background)|.*_attention\.output"
CLASS_ENDING = ".class_token"  # ending of layers that are not ours, what that token reads
PictureSpot = tuple[float, float]  # across and down, from 0 to 1
MIDDLE: PictureSpot = (0.5, 0.5)
CHOICE = re.compile(r"(?P<layer>\S+?)?(?: ?\bhead (?P<head>\d+))?(?: ?\bfrom (?P<x>[\d.]+) (?P<y>[\d.]+))?")


def layers_read(model: nn.Module) -> dict[str, bool]:
    """Layers that attend to places, in the order of the network, and whether the query's place matters to them.

    In a block those come last that say most about a place: its own window after the summaries of all windows.
    """
    backbone = find_trunk(model)
    if backbone is not None:
        names = [name for name in tap_names(backbone) if re.fullmatch(f"{ONE_QUERY}|{BY_PLACE}", name)]
        blocks = [name.rpartition(".")[0] for name in names]
        by_place = {name: not re.fullmatch(ONE_QUERY, name) for name in names}
        telling = {name: (blocks.index(name.rpartition(".")[0]), by_place[name], "window" in name) for name in names}
        return {name: by_place[name] for name in sorted(names, key=telling.__getitem__)}
    known = anatomy(model)
    first = known.reads is None or bool(known.reads[0])  # else the first token is a register, or idle
    return {name: by_place for place in known.attention for name, by_place in foreign_names(place, first)}


def foreign_names(place: AttentionPlace, first: bool) -> list[tuple[str, bool]]:
    if not place.by_all:
        return [(place.path, False)]
    return ([(place.path + CLASS_ENDING, False)] if place.prefix and first else []) + [(place.path, True)]


@torch.no_grad()
def read_from(
    model: nn.Module, images: Tensor, query: PictureSpot | None = MIDDLE, *, only: str | None = None
) -> dict[str, Tensor]:
    """What the query reads, (B, h, H, W) of each layer that attends to places, or of one, by one forward pass."""
    backbone = find_trunk(model)
    if backbone is None:
        return foreign_reads(model, images, query)
    names = [name for name in layers_read(model) if only in (None, name)]
    if not names:
        raise InputError(f"{type(backbone).__name__} attends to channels or windows, not to places of the picture")
    beside = [name for name in tap_names(backbone) if re.fullmatch(WHERE_KEYS_ARE, name)]
    with record(backbone, *names, *beside) as seen:
        model(images)
    return {name: places_read(name, backbone, seen, query) for name in names if name in seen}


def asked_at(query: PictureSpot | None, grid: tuple[int, int]) -> Tensor:
    """Shares (H, W) of the queries that are asked: a single one, or all alike."""
    if query is None:
        return torch.full(grid, 1 / (grid[0] * grid[1]))
    asked = torch.zeros(grid)
    asked[*(min(int(share * side), side - 1) for share, side in zip(reversed(query), grid, strict=True))] = 1
    return asked


def places_read(name: str, backbone: Any, seen: dict[str, Tensor], query: PictureSpot | None) -> Tensor:
    """(B, h, H, W) of one layer."""
    maps, parent = seen[name].float(), name.rpartition(".")[0]
    if name.startswith("readout."):
        return maps.sum(2)  # through all clusters
    if re.fullmatch(ONE_QUERY, name):
        return maps
    if name.endswith("attention.mixed"):
        return partial_reads(maps, seen, parent, query)
    if name.endswith("local_attention.map"):
        return neighbours_read(maps, seen, parent, backbone.get_submodule(parent).period, query)
    if name.endswith("global_attention.map"):
        size, period = sides_of_maps(seen[f"{parent}.output"]), backbone.get_submodule(parent).period
        asked = in_cells(asked_at(query, size), period).to(maps)
        return spread_over_cells(of_asked(maps, asked).unflatten(2, sides_of_maps(maps)), size, period)
    asked, stage = asked_at(query, sides_of_maps(maps)).to(maps), name.split(".blocks.")[0]
    if name.endswith("window_attn"):
        return window_read(maps * asked, backbone.get_submodule(stage).window)
    weights = of_asked(maps, asked)
    if name.endswith("fusion_attn"):
        window, size = backbone.get_submodule(stage).window, sides_of_maps(maps)
        windows = weights.unflatten(2, tuple(cell_count(side, window) for side in size))
        return spread_over_cells(windows, size, window)
    clusters = keys_gathered(name, stage, seen)
    if clusters is None:
        return weights.unflatten(2, sides_of_maps(maps))
    return torch.einsum("bhk,bkyx->bhyx", weights, clusters.float())


def sides_of_maps(maps: Tensor) -> tuple[int, int]:
    return maps.shape[-2], maps.shape[-1]


def of_asked(maps: Tensor, asked: Tensor) -> Tensor:
    return torch.einsum("bhkyx,yx->bhk", maps, asked)


def keys_gathered(name: str, stage: str, seen: dict[str, Tensor]) -> Tensor | None:
    """The maps (B, K, H, W) that a block's keys were gathered by: its own, or those of an earlier block."""
    block = int(name.removeprefix(f"{stage}.blocks.").partition(".")[0])
    own = [f"{stage}.clusters.{number}" for number in range(block, -1, -1)]
    return next((seen[tap] for tap in (*own, f"{stage}.clusters") if tap in seen), None)


def partial_reads(maps: Tensor, seen: dict[str, Tensor], parent: str, query: PictureSpot | None) -> Tensor:
    """Of weights (B, h, 1 + F, 1 + F) among the abstract token, which has no place, and the foreground."""
    positions, size = seen[f"{parent}.positions"], sides_of_maps(seen[f"{parent}.score"])
    asked = asked_at(query, size).to(maps).flatten()[positions]  # (B, F)
    row = torch.einsum("bhfk,bf->bhk", maps[:, :, 1:, 1:], asked)
    found = row.new_zeros(*row.shape[:2], size[0] * size[1])
    found = found.scatter(2, positions[:, None].expand_as(row), row).unflatten(2, size)
    background = seen.get(f"{parent}.background")  # without a single query the background reads nothing
    return found if background is None else found + (1 - asked.sum(1))[:, None, None, None] * background.float()


def neighbours_read(
    maps: Tensor, seen: dict[str, Tensor], parent: str, period: int, query: PictureSpot | None
) -> Tensor:
    """Of weights (B, h, 9 queries, 9 keys, H', W') in windows of 3x3 cells, every other cell being a middle.

    A cell in several windows reads them all; what is read beyond the border of the map has no place.
    """
    size = sides_of_maps(seen[f"{parent}.output"])
    asked = in_cells(asked_at(query, size), period).to(maps)
    windows = dict(kernel_size=WINDOW_SIDE, padding=WINDOW_SIDE // 2, stride=2)
    chosen = F.unfold(asked[None, None], **windows)[0]  # (9 queries, H' W')
    read = torch.einsum("bhqkl,ql->bhkl", maps.flatten(4), chosen)
    cells = F.fold(read.flatten(0, 1), sides_of_maps(asked), **windows)[:, 0]  # (B h, cells)
    return spread_over_cells(cells.unflatten(0, maps.shape[:2]), size, period)


def window_read(asked: Tensor, side: int) -> Tensor:
    """Of weights (B, h, 1 + side side, H, W), those of the abstract token first if there is one, in the own window."""
    size, extra = sides_of_maps(asked), asked.shape[2] - side * side
    rows, columns = (cell_count(length, side) for length in size)
    whole = F.pad(asked[:, :, extra:], (0, columns * side - size[1], 0, rows * side - size[0]))
    windows = whole.unflatten(4, (columns, side)).unflatten(3, (rows, side)).sum((4, 6))  # (B, h, K, H', W')
    keys = windows.unflatten(2, (side, side)).permute(0, 1, 4, 2, 5, 3)  # (B, h, H', side, W', side)
    return keys.flatten(4, 5).flatten(2, 3)[..., : size[0], : size[1]]


def in_cells(maps: Tensor, period: int) -> Tensor:
    """Sums of (H, W) over cells of p x p positions; the last ones may have fewer."""
    rows, columns = (cell_count(side, period) for side in maps.shape)
    whole = F.pad(maps, (0, columns * period - maps.shape[1], 0, rows * period - maps.shape[0]))
    return whole.unflatten(1, (columns, period)).unflatten(0, (rows, period)).sum((1, 3))


def spread_over_cells(cells: Tensor, size: tuple[int, int], period: int) -> Tensor:
    """Weights (..., H', W') divided up among the p x p positions of each cell: (..., H, W).

    Cells that reach over the border count as whole ones, or the few positions in them would outshine all others.
    """
    row, column = (torch.arange(side, device=cells.device) // period for side in size)
    return cells[..., row[:, None], column] / period**2


def foreign_reads(model: nn.Module, images: Tensor, query: PictureSpot | None) -> dict[str, Tensor]:
    known = anatomy(model, images)
    if not known.attention:
        raise InputError(f"{type(model).__name__} has no attention over whole pictures that can be recorded")
    first = known.reads is None or bool(known.reads[0])
    with record_attention(model) as seen:
        model(images)
    found = {}
    for place in known.attention:
        rows = seen[place.path].float()[..., place.prefix :]  # (B, h, queries, keys)
        for name, by_place in foreign_names(place, first):
            asked = asked_at(query, place.grid).to(rows).flatten()
            row = torch.einsum("bhqk,q->bhk", rows[:, :, place.prefix :], asked) if by_place else rows[:, :, 0]
            found[name] = row.unflatten(2, place.grid)
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
