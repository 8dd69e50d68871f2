"""Explanations of several pictures as one HTML file that needs nothing else. Equal explanations give equal bytes.

All maps of an image are in small grey pictures, which the script draws over the image when something is pointed at; the
tiles below show the same without a script. Numbers and pictures are made here, markup in templates/explanation.html.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from vitreous.clusters.ranks import rank_correlation
from vitreous.drawing.panels import HEAT_COLOURS, colourise, enlarge, overlay
from vitreous.faithfulness.scoring import NO_BETTER
from vitreous.reports.explanation import Clusters, Explanation
from vitreous.reports.explanation_maps import Cell, cells_of, coarse_attention, named, stacked
from vitreous.reports.page import jpeg_uri, png_uri, render_page
from vitreous.reports.sheet import shown_heat

PICTURE_WIDTH = 288  # pixels; sharp on a phone
THUMBNAIL_WIDTH, DRAWING_WIDTH = 88, 240
TILE_WIDTH = 160  # ten images of noise stay below five megabytes


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
) -> str:
    """The page as a string.

    Args:
        explanations: One per picture.
        title: Heading of the page.
        facts: Shown below the heading: model, layer, …
        top_k: Number of clusters drawn per picture.
        hidden_with: What masked areas are filled with: "black".
        beside: The same pictures explained for another model, shown to the right of the first.
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
        styles=["explanation.css"],
        scripts=["heat.js", "explanation.js"],
        title=title,
        facts=facts,
        colours=HEAT_COLOURS,
        scale=png_uri(Image.fromarray(colourise(np.linspace(0, 1, 200)[None]))),
        rows=rows,
        compared=bool(beside),
        hidden_with=hidden_with,
        shown={  # what the reader must be told about
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
    attention = coarse_attention(clusters.attention)
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
