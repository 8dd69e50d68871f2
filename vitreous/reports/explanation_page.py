"""Explanations of several pictures as one HTML file that needs nothing else, and one of them as a picture.

Equal explanations give equal bytes. All maps of an image are in small grey pictures, which the script draws over the
image when something is pointed at; the tiles below show the same without a script. Numbers and pictures are made here,
markup in templates/explanation.html.

Shapes: M clusters, H W grid of a map.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from vitreous.clusters.layer import stretch
from vitreous.clusters.ranks import rank_correlation
from vitreous.drawing.panels import HEAT_COLOURS, Panel, colourise, contact_sheet, enlarge, overlay
from vitreous.faithfulness.scoring import NO_BETTER
from vitreous.reports.explanation import Clusters, Explanation, LogitParts
from vitreous.reports.page import jpeg_uri, png_uri, render_page, signed

PANEL_PIXELS = 256  # width of one panel of the sheet
PICTURE_WIDTH = 288  # pixels; sharp on a phone
THUMBNAIL_WIDTH, DRAWING_WIDTH = 88, 240
PART_WIDTH = 96
TILE_WIDTH = 160  # ten images of noise stay below five megabytes
LONGEST_MAP_SIDE = 24  # cells; finer maps are averaged down: a pointer cannot tell more apart
LONGEST_ATTENTION_SIDE = 14  # cells, of the attention of places, which is shown as numbers
SHOWN_GROUPS = 4
LISTED_CLUSTERS = 6  # of a group, by number; explanation.json has all


class Cell(NamedTuple):
    """A map that can be shown: its place among those of its stack, and its caption."""

    stack: str  # "methods" or "clusters"
    place: int  # in its stack: cluster numbers come first, then groups
    heat: np.ndarray  # (H, W) from 0 to 1
    caption: str


class MapTile(NamedTuple):
    """A still picture of a map, and the map itself, which the script draws."""

    picture: str  # data URI
    alt: str
    cell: Cell


def render_explanations(
    explanations: Sequence[Explanation],
    *,
    title: str,
    facts: Mapping[str, str],
    top_k: int,
    hidden_with: str = "grey",
    beside: Sequence[Explanation] = (),
    shortcuts: Sequence[str] = (),
) -> str:
    """The page as a string.

    Args:
        explanations: One per picture.
        title: Heading of the page.
        facts: Shown below the heading: model, layer, …
        top_k: Number of clusters drawn per picture.
        hidden_with: What masked areas are filled with: "black".
        beside: The same pictures explained for another model, shown to the right of the first.
        shortcuts: What is known of the model's shortcuts, a sentence each.
    """
    columns = [explanations, beside] if beside else [explanations]
    rows = [
        [_image(f"{name}-{number}", item, top_k) for name, item in zip(("image", "other"), row, strict=False)]
        for number, row in enumerate(zip(*columns, strict=True), 1)
    ]
    shown = [*explanations, *beside]
    clusters = [item.clusters for item in shown if item.clusters is not None]
    return render_page(
        "explanation",
        styles=["page.css", "report.css", "explanation.css"],
        scripts=["heat.js", "explanation.js"],
        title=title,
        facts=facts,
        colours=HEAT_COLOURS,
        scale=png_uri(Image.fromarray(colourise(np.linspace(0, 1, 200)[None]))),
        rows=rows,
        compared=bool(beside),
        aligned=[aligned_methods(row) for row in rows],
        models=[one[0].facts.get("model", "") for one in columns if one],
        conclusion=right_answers(explanations) if len(explanations) > 1 else "",
        shortcuts=shortcuts,
        hidden_with=hidden_with,
        shown={  # what the reader must be told about
            "parts": any(item.parts is not None for item in shown),
            "methods": any(item.methods for item in shown),
            "load": any(item.load for item in shown),
            "clusters": bool(clusters),
            "masking": any(one.ranking == "masking" for one in clusters),
        },
    )


def _image(place: str, item: Explanation, top_k: int) -> dict[str, Any]:
    """What the page shows of one explanation, beside the explanation itself."""
    cells = cells_of(item)
    drops = [abs(load.drop[way]) for load in item.load for way in ("uniform", "attention_off")]
    return {
        "place": place,
        "item": item,
        "picture": jpeg_uri(enlarge(item.shown, PICTURE_WIDTH)),
        "thumbnail": jpeg_uri(enlarge(item.shown, THUMBNAIL_WIDTH)),
        "drawing": None if item.answer is None else jpeg_uri(enlarge(item.answer.drawing, DRAWING_WIDTH)),
        "stacks": [_stack(name, cells) for name in dict.fromkeys(cell.stack for cell in cells)],
        "attention": _attention(item.clusters),
        "default": _default(item),
        "largest_drop": max(drops, default=0.0) or 1.0,
        "parts": None if item.parts is None else _parts(item, item.parts),
        "methods": _methods(item, cells),
        "clusters": None
        if item.clusters is None
        else _clusters(item, item.clusters, cells[len(item.methods) :], top_k),
    }


def _stack(name: str, cells: Sequence[Cell]) -> dict[str, Any]:
    maps = np.stack([cell.heat for cell in cells if cell.stack == name])
    return {"name": name, "rows": maps.shape[1], "picture": png_uri(stacked(maps))}


def _attention(clusters: Clusters | None) -> dict[str, Any] | None:
    if clusters is None or clusters.attention is None:
        return None
    attention = np.stack([_averaged(np.asarray(one), LONGEST_ATTENTION_SIDE) for one in clusters.attention])
    highest = max(float(attention.max()), 1e-12)
    picture = png_uri(stacked(attention / highest))
    return {"rows": attention.shape[1], "clusters": len(attention), "highest": f"{highest:.6g}", "picture": picture}


def _default(item: Explanation) -> dict[str, Any] | None:
    """The method to look at first, and the control that is better on this image, if one is."""
    method = next((method for method in item.methods if method.name == item.default), None)
    if method is None:
        return None
    best = max((one for one in item.methods if one.control), key=lambda one: one.difference, default=method)
    better = round(best.difference, 2) > round(method.difference, 2)  # as printed
    return {"method": method, "better_control": best if better else None}


def _tile(item: Explanation, heat: Tensor, alt: str, cell: Cell) -> MapTile:
    still = overlay(item.shown, shown_heat(heat), width=TILE_WIDTH)
    return MapTile(jpeg_uri(still, quality=75), alt, cell)


def _methods(item: Explanation, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The most faithful first, as measured on this very image."""
    return [
        {
            "method": method,
            "map": _tile(item, method.heat, f"Heat map of {method.name} over the picture", cell),
            "default": method.name == item.default,
            "doubt": NO_BETTER if method.beats_controls is False and not method.control else "",
            "insertion": _points(method.insertion),
            "deletion": _points(method.deletion),
        }
        for method, cell in sorted(zip(item.methods, cells, strict=False), key=lambda pair: -pair[0].difference)
    ]


def aligned_methods(row: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each method of the pictures beside each other; None where it is not for a model."""
    found = {entry["method"].name: entry["method"] for image in row for entry in image["methods"]}
    known = [(image["place"], {entry["method"].name: entry for entry in image["methods"]}) for image in row]
    return [
        {"name": name, "control": method.control, "entries": [(place, own.get(name)) for place, own in known]}
        for name, method in found.items()
    ]


def right_answers(explanations: Sequence[Explanation]) -> str:
    """How many answers are right, where that is known."""
    known = [item for item in explanations if item.true is not None and item.probabilities]
    right = sum(item.true == item.predicted for item in known)
    return f"{right} of {len(known)} answers are right." if known else ""


def _parts(item: Explanation, parts: LogitParts) -> list[dict[str, Any]]:
    """Bars of a sum, in percent of the width: each begins where the one before it ends; the total begins at zero."""
    named_values: list[tuple[str, float, str | None]] = [("bias", parts.bias, None)]
    named_values += [("clusters of other stages", parts.others, None)] if parts.others else []
    for m in parts.order:  # what speaks against the class is drawn as bright as what speaks for it
        heat = shown_heat(parts.maps[m] if parts.values[m] >= 0 else -parts.maps[m])
        named_values.append(
            (f"cluster {m}", parts.values[m], jpeg_uri(overlay(item.shown, heat, width=PART_WIDTH), quality=75))
        )
    ends = [0.0, *accumulate(value for _, value, _ in named_values)]
    lowest, span = min(ends), (max(ends) - min(ends)) or 1.0
    rows = [*zip(named_values, ends, ends[1:], strict=False), (("logit", parts.logit, None), 0.0, parts.logit)]
    return [
        {
            "name": name,
            "value": value,
            "picture": picture,
            "left": 100 * (min(start, end) - lowest) / span,
            "width": 100 * abs(end - start) / span,
            "zero": -100 * lowest / span,
            "total": place == len(named_values),
        }
        for place, ((name, value, picture), start, end) in enumerate(rows)
    ]


def _clusters(item: Explanation, clusters: Clusters, cells: Sequence[Cell], top_k: int) -> dict[str, Any]:
    scores, entropy = clusters.importance[clusters.ranking].tolist(), clusters.entropy.tolist()
    others = [name for name in clusters.importance if name != clusters.ranking]
    groups = zip(clusters.groups, clusters.group_drop, cells[len(clusters.maps) :], strict=False)
    return {
        "ranking": clusters.ranking,
        "unit": clusters.unit,
        "group_count": len(clusters.groups),
        "groups": [
            {
                "name": named(group),
                "lost": lost,
                "map": _tile(item, clusters.maps[list(group)].sum(0), f"Summed map of {named(group)}", cell),
            }
            for group, lost, cell in groups
        ],
        "top": [
            {
                "number": m,
                "score": scores[m],
                "entropy": entropy[m],
                "map": _tile(item, clusters.maps[m], f"Map of cluster {m}", cells[m]),
            }
            for m in clusters.order[:top_k]
        ],
        "largest": max(map(abs, scores)) or 1.0,
        "other_rankings": others,
        "rows": [
            {
                "number": m,
                "caption": cells[m].caption,
                "score": scores[m],
                "others": [clusters.importance[name][m].item() for name in others],
                "entropy": entropy[m],
            }
            for m in clusters.order
        ],
        "removal": _removal(clusters) if clusters.counts else None,
    }


def _removal(clusters: Clusters) -> dict[str, Any]:
    """Log-odds left after the first clusters of each ranking are removed together."""
    left = clusters.left
    best = max(left, key=clusters.removal_area)
    lowest = min(clusters.before, *(value for values in left.values() for value in values))
    highest = max(clusters.before, *(value for values in left.values() for value in values))
    span = (highest - lowest) or 1.0
    chosen = clusters.importance[clusters.ranking][None]
    rows = [
        {
            "name": name,
            "best": name == best,
            "left": values,
            "points": _points([(value - lowest) / span for value in (clusters.before, *values)]),
            "agreement": rank_correlation(clusters.importance[name][None], chosen).item(),
        }
        for name, values in left.items()
    ]
    return {"before": clusters.before, "counts": clusters.counts, "rows": rows}


def _points(values: Sequence[float]) -> str:
    """A line through values from 0 to 1, in a box of 100 by 40."""
    step = 100 / (len(values) - 1)
    return " ".join(f"{place * step:.1f},{38 - 36 * value:.1f}" for place, value in enumerate(values))


def cells_of(item: Explanation) -> list[Cell]:
    """Every map of an image, those of a stack on one grid."""
    grid = _fitting(item.picture.width, item.picture.height, LONGEST_MAP_SIDE)
    cells = [
        Cell(
            "methods",
            index,
            _resized(shown_heat(method.heat), grid),
            f"{method.name}: insertion − deletion {signed(method.difference)}",
        )
        for index, method in enumerate(item.methods)
    ]
    clusters = item.clusters
    if clusters is None:
        return cells
    scores, spread = clusters.importance[clusters.ranking].tolist(), clusters.entropy.tolist()
    rank_of = {m: rank for rank, m in enumerate(clusters.order, 1)}
    for m, heat in enumerate(clusters.maps):
        rank = f"rank {rank_of[m]} of {len(rank_of)}"
        caption = f"cluster {m}, {rank}: score {signed(scores[m], 3)}, entropy {spread[m]:.2f}"
        cells.append(Cell("clusters", m, _averaged(shown_heat(heat), LONGEST_MAP_SIDE), caption))
    shown = zip(clusters.groups[:SHOWN_GROUPS], clusters.group_drop, strict=False)
    for index, (group, lost) in enumerate(shown, len(clusters.maps)):
        heat = shown_heat(clusters.maps[list(group)].sum(0))
        caption = f"{named(group)}: {signed(lost)} log-odds lost when removed together"
        cells.append(Cell("clusters", index, _averaged(heat, LONGEST_MAP_SIDE), caption))
    return cells


def named(group: Sequence[int]) -> str:
    """The clusters of a group, or how many there are and the first of them."""
    numbers = ", ".join(map(str, group[:LISTED_CLUSTERS]))
    if len(group) > LISTED_CLUSTERS:
        return f"{len(group)} clusters: {numbers}, …"
    return f"cluster {numbers}" if len(group) == 1 else f"clusters {numbers}"


def stacked(maps: np.ndarray) -> Image.Image:
    """Maps with values from 0 to 1, one below the other, as a grey picture."""
    return Image.fromarray((np.concatenate(list(maps)) * 255).round().astype(np.uint8))


def _averaged(heat: np.ndarray, longest: int) -> np.ndarray:
    rows, columns = heat.shape
    size = _fitting(columns, rows, min(longest, max(rows, columns)))
    return np.asarray(Image.fromarray(heat.astype(np.float32)).resize(size, Image.Resampling.BOX))


def _resized(heat: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """On a grid of one size (width, height), whatever the method's own."""
    how = Image.Resampling.BOX if max(heat.shape) > max(size) else Image.Resampling.BICUBIC
    return np.asarray(Image.fromarray(heat.astype(np.float32)).resize(size, how)).clip(0, 1)


def _fitting(width: int, height: int, longest: int) -> tuple[int, int]:
    """Width and height of this shape, the longer side as given."""
    factor = longest / max(width, height)
    return max(1, round(width * factor)), max(1, round(height * factor))


def shown_heat(heat: Tensor) -> np.ndarray:
    """A map from 0 to 1 as it is drawn. Where a map has both signs, what speaks against the answer is dark."""
    positive = heat.float().clamp_min(0)
    high = positive.max()
    scaled = positive / high if heat.min() < 0 and high > 0 else stretch(heat.float())
    return np.asarray(scaled)


def draw_sheet(item: Explanation, top_k: int) -> Image.Image:
    """The image, the default map and the most important clusters in one row."""
    others = tuple(f"{name} {probability:.1%}" for name, probability in item.probabilities[1:3])
    first = f"{item.predicted} {item.probabilities[0][1]:.1%}" if item.probabilities else item.name
    panels = [Panel(enlarge(item.shown, PANEL_PIXELS), first, others)]
    for method in sorted(item.methods, key=lambda method: method.name != item.default):
        if method.name == item.default or item.clusters is None:
            details = ("insertion minus deletion", f"{method.difference:+.2f}")
            panels.append(Panel(overlay(item.shown, shown_heat(method.heat), width=PANEL_PIXELS), method.name, details))
    footnote = f"insertion minus deletion: the more, the better the model agrees with the map of “{item.watched}”"
    if item.clusters is not None:
        clusters = item.clusters
        for m in clusters.order[:top_k]:
            score, spread = clusters.importance[clusters.ranking][m].item(), clusters.entropy[m].item()
            heat = overlay(item.shown, shown_heat(clusters.maps[m]), width=PANEL_PIXELS)
            panels.append(Panel(heat, f"cluster {m}", (f"score {score:+.3f}", f"entropy {spread:.2f} nats")))
        flat = math.log(clusters.maps[0].numel())
        footnote = f"score for “{item.watched}”: {clusters.unit}; entropy of a flat map: {flat:.2f} nats"
    verdict = "" if item.true is None else ", right" if item.true == item.predicted else f", but it is {item.true}"
    heading = f"Predicted {item.predicted}{verdict}" if item.answer is None else item.answer.nothing or item.watched
    about = " · ".join(item.facts[key] for key in ("model", "layer", "maps") if key in item.facts)
    return contact_sheet(
        panels,
        heading=heading,
        subheading=f"{item.name} · {about}" if about else item.name,
        footnote=footnote,
    )
