"""The attention of any head, block and query (`attribution.looking`), on a sheet."""

import re

from vitreous.attribution.looking import chosen_layers, head_number, read_from
from vitreous.clusters.layer import stretch
from vitreous.drawing.panels import Panel, overlay
from vitreous.drawing.sheet import Sheet
from vitreous.errors import InputError
from vitreous.investigations.base import Inquiry, Investigated, Investigation
from vitreous.reports.investigation import Findings

MOST_PANELS = 24
LOOK_WIDTH = 256


class Attention(Investigation):
    name = "attention"
    order = 25
    any_task, answers = True, False
    asks = "where a head of a block looks from a place of the picture"
    reading = (
        "Each panel is one head of one layer; warm places are those it reads. The query is the place given by --query, "
        "from 0 0 at the upper left to 1 1; tokens that belong to no place (class tokens, abstract tokens, "
        "PartialFormer's single query) are the same for every place. Attention to clusters is shown as attention to "
        "the positions that the clusters gather, attention to windows and cells at all positions in them. In "
        "PartialFormer (mixed) a place of the foreground reads the foreground, any other what the single query reads. "
        "Attention says what was read, not what mattered for the answer: for that, take vitreous explain."
    )

    def run(self, inquiry: Inquiry) -> Findings:
        rows: list[dict] = []
        pictures: dict[str, Sheet] = {}
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


def looked_at(subject: Investigated, inquiry: Inquiry) -> tuple[list[dict], Sheet]:
    images = inquiry.images(subject.trained)
    picture = images.picture(0)
    image = subject.trained.preprocess(picture)[None].to(subject.trained.device)
    shown = subject.trained.preprocess.part(picture.convert("RGB"))
    chosen = chosen_layers(read_from(subject.trained.model, image, inquiry.query), inquiry.block)
    rows, panels = [], []
    for layer, maps in chosen.items():
        heads = range(maps.shape[1]) if inquiry.head is None else [head_number(inquiry.head, maps, layer)]
        for head in heads:
            found = maps[0, head]  # (H, W)
            y, x = divmod(int(found.argmax()), found.shape[1])
            strongest = [round((x + 0.5) / found.shape[1], 3), round((y + 0.5) / found.shape[0], 3)]
            rows.append({"model": subject.label, "layer": layer, "head": head + 1, "strongest": strongest})
            heat = stretch(found).cpu().numpy()
            panels.append(Panel(overlay(shown, heat, width=LOOK_WIDTH), f"head {head + 1}", lines_of_layer(layer)))
    across, down = inquiry.query
    spread = spread_out(panels)
    sheet = Sheet(
        spread,
        heading=f"{subject.label}: what is read from {across:g} {down:g}",
        subheading="each panel has its own scale",
        footnote=f"{len(spread)} of {len(panels)} heads; --block and --head choose"
        if len(spread) < len(panels)
        else "",
    )
    return rows, sheet


def lines_of_layer(layer: str) -> tuple[str, str]:
    """Block and layer in it, each on a line of its own."""
    name = layer.removesuffix(".map")
    block = re.fullmatch(r"(.*blocks\.\d+)\.(?:.*\.)?(\w+)", name)
    return (block[1], block[2]) if block else (name, "")


def spread_out(panels: list[Panel]) -> list[Panel]:
    """At most as many as can be looked at, from all depths."""
    step = max(1, -(-len(panels) // MOST_PANELS))
    return panels[::step]


INVESTIGATION = Attention()
