"""Explanations of several pictures as one HTML file that needs nothing else. Equal explanations give equal bytes.

Every map of an image is in an atlas of small grey pictures, which the script draws over the image when something is
pointed at; the tiles below show the same without a script.
"""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from PIL import Image

from vitreous.drawing.panels import HEAT_COLOURS, colourise, enlarge
from vitreous.reports.explanation import Explanation
from vitreous.reports.page import fill
from vitreous.reports.report_clusters import clusters_html, load_html
from vitreous.reports.report_findings import findings_html
from vitreous.reports.report_methods import methods_html
from vitreous.reports.report_pieces import Cell, atlas, cells_of, jpeg_uri, looks_of, number, png_uri
from vitreous.reports.report_reading import reading

DISPLAY_WIDTH = 288  # pixels; sharp on a phone
THUMBNAIL_WIDTH = 88
TOLD = "Point at a map below, or at a place of the picture."


def render(
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
        hidden_with: What masked areas are filled with, as a noun: "black".
        beside: The same pictures explained for another model, to be shown at the right of the first.
    """
    parts = {
        "TITLE": escape(title),
        "COLOURS": " ".join(HEAT_COLOURS),
        "WIDE": "wide" if beside else "",
        "FACTS": "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items()),
        "READING": reading([*explanations, *beside], hidden_with),
        "BAR": png_uri(Image.fromarray(colourise(np.linspace(0, 1, 200)[None]))),
        "INDEX": _index(explanations) if len(explanations) > 1 else "",
        "IMAGES": "\n".join(_rows(explanations, beside, top_k)),
    }
    return fill("vitreous.reports", "report", parts)


def _rows(explanations: Sequence[Explanation], beside: Sequence[Explanation], top_k: int) -> list[str]:
    if not beside:
        return [_section(f"image-{index}", item, top_k) for index, item in enumerate(explanations, 1)]
    pairs = enumerate(zip(explanations, beside, strict=True), 1)
    return [
        f'<div class="pair">{_section(f"image-{index}", left, top_k)}{_section(f"other-{index}", right, top_k)}</div>'
        for index, (left, right) in pairs
    ]


def _index(explanations: Sequence[Explanation]) -> str:
    rows = [
        f'<li><a href="#image-{index}"><img alt="" src="{jpeg_uri(enlarge(item.shown, THUMBNAIL_WIDTH))}">'
        f"<span>{escape(item.predicted)}{_mark(item)}</span></a></li>"
        for index, item in enumerate(explanations, 1)
    ]
    return f'<nav aria-label="Images"><ul class="index">{"".join(rows)}</ul></nav>'


def _mark(item: Explanation) -> str:
    if item.true is None:
        return ""
    return ' <span class="right">right</span>' if item.true == item.predicted else ' <span class="wrong">wrong</span>'


def _section(place: str, item: Explanation, top_k: int) -> str:
    cells = cells_of(item)
    inside = "" if item.clusters is None else clusters_html(item.clusters, item, cells, top_k)
    return (
        f'<article class="image" id="{place}" aria-labelledby="{place}-name"><div class="inside">\n'
        f'<h2 id="{place}-name">{escape(item.name)}</h2>\n<p class="verdict">{_verdict(item)}</p>\n'
        f'<div class="overview">\n{_picture(item)}\n{_viewer(item, cells)}\n'
        f"<div>{_probabilities(item)}{findings_html(item)}{_default(item)}</div>\n</div>\n"
        f"{load_html(item)}{methods_html(item, cells)}{inside}</div></article>"
    )


def _verdict(item: Explanation) -> str:
    model = f"{escape(item.facts['model'])}: " if "model" in item.facts else ""
    if item.answer is not None and item.answer.nothing:
        return f"{model}nothing to explain: {escape(item.answer.nothing)}"
    if not item.probabilities:
        return f"{model}explained: <b>{escape(item.watched)}</b>"
    predicted = f"{model}predicted <b>{escape(item.predicted)}</b> at {item.probabilities[0][1]:.1%}"
    if item.true == item.predicted:
        predicted += ', <span class="right">right</span>'
    elif item.true is not None:
        predicted += f', <span class="wrong">wrong</span>: it is <b>{escape(item.true)}</b>'
    return predicted if item.watched == item.predicted else f"{predicted}. Explained: <b>{escape(item.watched)}</b>"


def _picture(item: Explanation) -> str:
    """The picture, and over it the place pointed at; below, which clusters that place looks at."""
    name = escape(item.name)
    shown = jpeg_uri(enlarge(item.shown, DISPLAY_WIDTH))
    caption = "as the model sees it" + (", the finding outlined" if item.answer and item.answer.finding else "")
    places = ""
    if item.clusters is not None and item.clusters.attention is not None:
        caption += "; point at a place, or focus it and use the arrow keys"
        places = (
            '<canvas class="places" tabindex="0" role="img" '
            'aria-label="Places of the picture: arrow keys move, the clusters a place looks at are read out"></canvas>'
        )
    return (
        f'<figure class="source"><div class="under"><img class="original" alt="The picture {name}" '
        f'src="{shown}">{places}</div><figcaption>{caption}</figcaption>'
        '<div class="looks" aria-live="polite"></div></figure>'
    )


def _viewer(item: Explanation, cells: Sequence[Cell]) -> str:
    """Hidden until the script has drawn it."""
    if not cells:
        return ""
    looks = ""
    clusters = item.clusters
    if clusters is not None and clusters.attention is not None:
        attention = looks_of(clusters.attention)
        highest = max(float(attention.max()), 1e-12)
        looks = (
            f'<img class="attention" alt="" hidden data-rows="{attention.shape[1]}" data-clusters="{len(attention)}" '
            f'data-highest="{highest:.6g}" src="{png_uri(atlas(attention / highest))}">'
        )
    sources = ""
    for stack in dict.fromkeys(cell.stack for cell in cells):
        maps = np.stack([cell.heat for cell in cells if cell.stack == stack])
        uri = png_uri(atlas(maps))
        sources += f'<img class="atlas" alt="" hidden data-stack="{stack}" data-rows="{maps.shape[1]}" src="{uri}">'
    return (
        '<figure class="viewer" hidden><canvas class="heat" role="img" aria-label="Heat map"></canvas>'
        f'<figcaption aria-live="polite">{TOLD}</figcaption>'
        '<div class="tools"><button type="button" class="previous" aria-label="Previous map">‹</button>'
        '<button type="button" class="next" aria-label="Next map">›</button>'
        f'<label>heat <input type="range" min="0" max="140" value="100"></label></div>{sources}{looks}</figure>'
    )


def _probabilities(item: Explanation) -> str:
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{probability:.1%}</dd>"
        '<svg class="probability" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="8" rx="2"/>'
        f'<rect class="gain" width="{100 * probability:.2f}" height="8" rx="2"/></svg></div>'
        for name, probability in item.probabilities
    )
    return f'<dl class="bars">{rows}</dl>' if rows else ""


def _default(item: Explanation) -> str:
    """Which map to look at first, and why that one."""
    found = next((method for method in item.methods if method.name == item.default), None)
    if found is None:
        return ""
    reason = f" {escape(item.reason)}" if item.reason else ""
    better = max((m for m in item.methods if m.control), key=lambda m: m.difference, default=found)
    if round(better.difference, 2) > round(found.difference, 2):  # as printed
        reason += (
            f' <span class="wrong">On this image the control {escape(better.name)} reaches more '
            f"({number(better.difference)}): doubt this map.</span>"
        )
    return (
        f'<p class="default"><b>Look first at <span class="name">{escape(found.name)}</span>.</b> '
        f"{escape(found.summary)} Insertion − deletion on this image: {number(found.difference)}.{reason}</p>"
    )
