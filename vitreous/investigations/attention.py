"""The attention of any head, block and query, as pictures.

What a query reads is a map over its keys. Where keys are clusters, a query reads each position as much as it reads the
clusters that the position belongs to. The class token of XCiT, the abstract tokens of MAT and PartialFormer's single
query have no place of their own: they are shown for every head whatever --query says.

Shapes: h heads, K keys, H W grid.
"""

import math
import re

import torch
from PIL import Image
from torch import Tensor, nn

from vitreous.attribution.attention import record_attention
from vitreous.attribution.method import find_trunk
from vitreous.attribution.spatial import anatomy
from vitreous.clusters.layer import stretch
from vitreous.drawing.panels import Panel, contact_sheet, overlay
from vitreous.errors import InputError
from vitreous.investigations.base import Inquiry, Investigated, Investigation
from vitreous.layers.tap import record, tap_names
from vitreous.reports.investigation import Findings

READS = r"(.*\.)?(attention\.map|abstract_attn|attention\.abstract|attention\.background|global_attention\.map|centre)"
MOST_PANELS = 24
LOOK_WIDTH = 256
IN_WINDOW = 9  # of local attention, the middle included


@torch.no_grad()
def attention_pictures(model: nn.Module, image: Tensor, query: tuple[float, float]) -> dict[str, Tensor]:
    """Of one image (1, 3, H, W): what the query reads, (h, H, W) of each layer that attends to places."""
    trunk = find_trunk(model)
    if trunk is None:
        return foreign_pictures(model, image, query)
    names = [name for name in tap_names(trunk) if re.fullmatch(READS, name)]
    if not names:
        raise InputError(f"{type(trunk).__name__} attends to channels or windows, not to places of the picture")
    clusters = [name for name in tap_names(trunk) if re.search(r"clusters(\.\d+)?$", name)]
    with record(trunk, *names, *clusters) as seen:
        model(image)
    found = {name: read_from(name, seen, clusters, query) for name in names}
    return {name: maps for name, maps in found.items() if maps is not None}


def read_from(name: str, seen: dict[str, Tensor], clusters: list[str], query: tuple[float, float]) -> Tensor | None:
    """(h, H, W), or None where the keys are no places."""
    maps = seen[name][0].float()
    if maps.ndim == 3:  # one query for all
        return maps
    grid = (maps.shape[2], maps.shape[3])
    weights = maps[:, :, int(query[1] * grid[0]), int(query[0] * grid[1])]  # (h, K)
    if weights.shape[1] == math.prod(grid):
        return weights.unflatten(1, grid)
    stage = name.split(".blocks.")[0]
    own = [tap for tap in clusters if tap.startswith(stage) and tap in seen]
    if own and seen[own[-1]].shape[1] == weights.shape[1]:
        return torch.einsum("hk,kyx->hyx", weights, seen[own[-1]][0].float())
    return weights.unflatten(1, (3, 3)) if weights.shape[1] == IN_WINDOW else None


def foreign_pictures(model: nn.Module, image: Tensor, query: tuple[float, float]) -> dict[str, Tensor]:
    places = anatomy(model, image).attention
    if not places:
        raise InputError(f"{type(model).__name__} has no attention over whole pictures that can be recorded")
    with record_attention(model) as seen:
        model(image)
    found = {}
    for place in places:
        rows = seen[place.path][0].float()  # (h, queries, keys)
        number = place.prefix + int(query[1] * place.grid[0]) * place.grid[1] + int(query[0] * place.grid[1])
        row = rows[:, number if place.by_all else 0, place.prefix :]
        found[place.path] = row.unflatten(1, place.grid)
    return found


class Attention(Investigation):
    name = "attention"
    order = 25
    asks = "where a head of a block looks from a place of the picture"
    reading = (
        "Each panel is one head of one layer; warm places are those it reads. The query is the place given by --query, "
        "from 0 0 at the upper left to 1 1; tokens that belong to no place (class tokens, abstract tokens, "
        "PartialFormer's single query) are the same for every place. Attention to clusters is shown as attention to "
        "the positions that the clusters gather. Attention says what was read, not what mattered for the answer: for "
        "that, take vitreous explain."
    )

    def run(self, inquiry: Inquiry) -> Findings:
        rows: list[dict] = []
        pictures: dict[str, Image.Image] = {}
        undefined: dict[str, str] = {}
        for number, subject in enumerate(inquiry.subjects):
            try:
                found, sheet = looked_at(subject, inquiry)
            except InputError as reason:
                undefined[subject.label] = str(reason)
                continue
            rows += found
            pictures["attention" if number == 0 else f"attention_{number + 1}"] = sheet
        return Findings(
            tuple(rows), pictures=pictures, undefined=undefined, columns=("model", "layer", "head", "strongest")
        )


def looked_at(subject: Investigated, inquiry: Inquiry) -> tuple[list[dict], Image.Image]:
    images = inquiry.images(subject.trained)
    picture = images.picture(0)
    image = subject.trained.preprocess(picture)[None].to(subject.trained.device)
    shown = subject.trained.preprocess.part(picture.convert("RGB"))
    layers = attention_pictures(subject.trained.model, image, inquiry.query)
    chosen = chosen_layers(layers, inquiry.block)
    rows, panels = [], []
    for layer, maps in chosen.items():
        heads = range(len(maps)) if inquiry.head is None else [head_number(inquiry.head, maps, layer)]
        for head in heads:
            y, x = divmod(int(maps[head].argmax()), maps.shape[2])
            strongest = [round((x + 0.5) / maps.shape[2], 3), round((y + 0.5) / maps.shape[1], 3)]
            rows.append({"model": subject.label, "layer": layer, "head": head + 1, "strongest": strongest})
            heat = stretch(maps[head]).cpu().numpy()
            name = layer.removesuffix(".map").removesuffix(".attention")
            panels.append(Panel(overlay(shown, heat, width=LOOK_WIDTH), f"head {head + 1}", (name,)))
    across, down = inquiry.query
    spread = spread_out(panels)
    sheet = contact_sheet(
        spread,
        heading=f"{subject.label}: what is read from {across:g} {down:g}",
        subheading="each panel has its own scale",
        footnote=f"{len(spread)} of {len(panels)} heads; --block and --head choose"
        if len(spread) < len(panels)
        else "",
    )
    return rows, sheet


def spread_out(panels: list[Panel]) -> list[Panel]:
    """At most as many as can be looked at, from all depths."""
    step = max(1, -(-len(panels) // MOST_PANELS))
    return panels[::step]


def chosen_layers(layers: dict[str, Tensor], block: str | None) -> dict[str, Tensor]:
    if block is None:
        return layers
    found = {name: maps for name, maps in layers.items() if block in name}
    if not found:
        raise InputError(f"--block {block} is part of no layer's name; layers: {', '.join(layers)}")
    return found


def head_number(head: int, maps: Tensor, layer: str) -> int:
    if not 1 <= head <= len(maps):
        raise InputError(f"head {head} does not exist; {layer} has heads 1 to {len(maps)}")
    return head - 1


INVESTIGATION = Attention()
