"""Explanations of several pictures as one HTML file that needs nothing else. Equal explanations give equal bytes."""

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from PIL import Image

from vitreous.maps.draw import HEAT_COLOURS, colourise, enlarge, overlay
from vitreous.maps.page import fill

DISPLAY_WIDTH = 288  # pixels; sharp on a phone
OVERLAY_WIDTH = 224  # ten images of noise stay below five megabytes
THUMBNAIL_WIDTH = 88
LARGEST_MAP = 28  # maps of early stages are reduced to this for the interactive view


class Cluster(NamedTuple):
    number: int
    importance: float
    entropy: float


class Explanation(NamedTuple):
    """One picture and what carried its decision."""

    name: str
    picture: Image.Image  # as the model saw it
    predicted: str
    true: str | None
    watched: str  # the class whose probability was watched
    probabilities: tuple[tuple[str, float], ...]  # most probable classes first
    clusters: tuple[Cluster, ...]  # all of them, most important first
    heat: np.ndarray  # (M, H, W) in [0, 1], by cluster number


def render(
    explanations: Sequence[Explanation], *, title: str, facts: Mapping[str, str], hidden_with: str, top_k: int
) -> str:
    """The page as a string.

    Args:
        explanations: One per picture.
        title: Heading of the page.
        facts: Shown below the heading: model, layer, …
        hidden_with: What masked areas are filled with, as a noun: "black".
        top_k: Number of overlays per picture.
    """
    parts = {
        "TITLE": escape(title),
        "COLOURS": " ".join(HEAT_COLOURS),
        "FACTS": "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items()),
        "CLUSTERS": str(len(explanations[0].clusters)),
        "HIDDEN_WITH": escape(hidden_with),
        "BAR": png_uri(Image.fromarray(colourise(np.linspace(0, 1, 200)[None]))),
        "INDEX": _index(explanations) if len(explanations) > 1 else "",
        "IMAGES": "\n".join(_section(index, item, top_k) for index, item in enumerate(explanations, 1)),
    }
    return fill("vitreous.maps", "report", parts)


def _index(explanations: Sequence[Explanation]) -> str:
    rows = [
        f'<li><a href="#image-{index}"><img alt="" src="{jpeg_uri(enlarge(item.picture, THUMBNAIL_WIDTH))}">'
        f"<span>{escape(item.predicted)}{_mark(item)}</span></a></li>"
        for index, item in enumerate(explanations, 1)
    ]
    return f'<nav aria-label="Images"><ul class="index">{"".join(rows)}</ul></nav>'


def _mark(item: Explanation) -> str:
    if item.true is None:
        return ""
    return ' <span class="right">right</span>' if item.true == item.predicted else ' <span class="wrong">wrong</span>'


def _section(index: int, item: Explanation, top_k: int) -> str:
    name = escape(item.name)
    original = jpeg_uri(enlarge(item.picture, DISPLAY_WIDTH))
    overlays = "".join(_overlay(item, rank) for rank in range(1, min(top_k, len(item.clusters)) + 1))
    return (
        f'<article class="image" id="image-{index}" aria-labelledby="name-{index}">\n'
        f'<h2 id="name-{index}">{name}</h2>\n<p class="verdict">{_verdict(item)}</p>\n'
        '<div class="overview">\n'
        f'<figure><img class="original" alt="The picture {name} as the model sees it" src="{original}">'
        "<figcaption>as the model sees it</figcaption></figure>\n"
        f"{_viewer(item)}\n<div>{_probabilities(item)}</div>\n</div>\n"
        f'<h3>Most important clusters for “{escape(item.watched)}”</h3>\n<div class="top">{overlays}</div>\n'
        f"<details><summary>All {len(item.clusters)} clusters, ranked</summary>{_ranking(item)}</details>\n</article>"
    )


def _verdict(item: Explanation) -> str:
    predicted = f"predicted <b>{escape(item.predicted)}</b> at {item.probabilities[0][1]:.1%}"
    if item.true is None:
        return predicted
    if item.true == item.predicted:
        return f'{predicted}, <span class="right">right</span>'
    return f'{predicted}, <span class="wrong">wrong</span>: it is <b>{escape(item.true)}</b>'


def _viewer(item: Explanation) -> str:
    """Hidden until the script has drawn it."""
    maps = [_reduced(heat) for heat in item.heat]
    atlas = Image.fromarray((np.concatenate(maps) * 255).round().astype(np.uint8))
    return (
        '<figure class="viewer" hidden><canvas role="img" aria-label="Heat map"></canvas>'
        '<figcaption aria-live="polite"></figcaption>'
        '<div class="tools"><button type="button" class="previous" aria-label="Previous cluster">‹</button>'
        '<button type="button" class="next" aria-label="Next cluster">›</button>'
        '<label>heat <input type="range" min="0" max="140" value="100"></label></div>'
        f'<img class="atlas" alt="" hidden data-rows="{maps[0].shape[0]}" src="{png_uri(atlas)}"></figure>'
    )


def _reduced(heat: np.ndarray) -> np.ndarray:
    rows, columns = heat.shape
    factor = min(1.0, LARGEST_MAP / max(rows, columns))
    size = max(1, round(columns * factor)), max(1, round(rows * factor))
    return np.asarray(Image.fromarray(heat.astype(np.float32)).resize(size, Image.Resampling.BOX))


def _probabilities(item: Explanation) -> str:
    rows = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{value:.1%}</dd>"
        '<svg class="probability" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="8"/>'
        f'<rect class="gain" width="{100 * value:.2f}" height="8"/></svg></div>'
        for label, value in item.probabilities
    )
    return f'<dl class="bars" aria-label="Class probabilities">{rows}</dl>'


def _overlay(item: Explanation, rank: int) -> str:
    cluster = item.clusters[rank - 1]
    image = jpeg_uri(overlay(item.picture, item.heat[cluster.number], width=OVERLAY_WIDTH))
    alt = f"Heat map of cluster {cluster.number} over {escape(item.name)}"
    return (
        f'<figure><img alt="{alt}" src="{image}"><figcaption><b>cluster {cluster.number}</b><br>'
        f"score {cluster.importance:+.3f}<br>entropy {cluster.entropy:.2f} nats</figcaption></figure>"
    )


def _ranking(item: Explanation) -> str:
    largest = max(abs(cluster.importance) for cluster in item.clusters) or 1.0
    rows = "".join(_row(rank, cluster, largest, len(item.clusters)) for rank, cluster in enumerate(item.clusters, 1))
    return (
        '<div class="ranking" tabindex="0" role="group" aria-label="Ranking of all clusters"><table><thead><tr>'
        '<th scope="col">rank</th><th scope="col">cluster</th><th scope="col" class="wide">probability lost</th>'
        '<th scope="col" class="number">score</th><th scope="col" class="number">entropy</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(rank: int, cluster: Cluster, largest: float, count: int) -> str:
    length = 49 * abs(cluster.importance) / largest
    kind, left = ("gain", 50.0) if cluster.importance >= 0 else ("loss", 50 - length)
    caption = (
        f"cluster {cluster.number}, rank {rank} of {count}: "
        f"score {cluster.importance:+.3f}, entropy {cluster.entropy:.2f}"
    )
    return (
        f'<tr><td>{rank}</td><td><button type="button" aria-pressed="false" data-cluster="{cluster.number}" '
        f'data-caption="{caption}" aria-label="Show cluster {cluster.number}">{cluster.number}</button></td>'
        '<td class="wide"><svg class="signed" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="{kind}" x="{left:.2f}" width="{length:.2f}" y="1" height="8"/>'
        '<line class="axis" x1="50" x2="50" y1="0" y2="10"/></svg></td>'
        f'<td class="number">{cluster.importance:+.4f}</td><td class="number">{cluster.entropy:.2f}</td></tr>'
    )


def jpeg_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=85, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def png_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
