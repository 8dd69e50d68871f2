"""An atlas of clusters as one page beside its pictures. Equal atlases give equal bytes.

Regions of a cluster are side by side in one picture, of which each tile shows a part. The script orders the clusters
and tells which regions are alike; without it the page still shows everything else.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from vitreous.clusters.atlas_figures import AtlasClass, AtlasCluster, AtlasSummary, behind_mistakes
from vitreous.reports.atlas_regions import TILE, Region
from vitreous.reports.page import fill
from vitreous.reports.report_pieces import number

KINDS = {
    "top": ("Fires most", "highest peaks of its map over the data"),
    "typical": ("At random", "what it does on images nobody chose"),
    "mistakes": ("Wrong answers it speaks for", "the most important first"),
    "asked": ("Asked for", "an image of yours"),
    "like": ("Found over the data", "the most similar first"),
}
SHOWN_CLASSES = 3  # for which a cluster speaks most
SHOWN_MISTAKES = 6  # clusters behind wrong answers


class Tile(NamedTuple):
    """A region where it is drawn."""

    region: Region
    name: str  # of the image
    label: str | None  # None: nobody knows
    answer: str
    picture: str  # the file with all regions of the cluster ...
    place: int  # ... the number of this one in it ...
    places: int  # ... of so many
    alike: tuple[tuple[int, float], ...]  # numbers of similar tiles, and the cosine


class Section(NamedTuple):
    figures: AtlasCluster
    tiles: Mapping[int, Tile]  # by their numbers within the page


def render(
    *,
    title: str,
    facts: Mapping[str, str],
    summary: AtlasSummary,
    classes: Sequence[AtlasClass],
    sections: Sequence[Section],
    like: Mapping[int, Tile],
) -> str:
    """The page; `like` are regions found for an image of the reader's, that image first."""
    clusters = [section.figures for section in sections]
    parts = {
        "TITLE": escape(title),
        "FACTS": "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items()),
        "WARNING": _warning(summary),
        "LIKE": _like(like) if like else "",
        "CLASSES": _classes(classes, summary),
        "MISTAKES": _mistakes(clusters, summary),
        "CLUSTERS": "\n".join(_section(section, classes, summary) for section in sections),
    }
    return fill("vitreous.reports", "atlas", parts, styles=["report"], images="'self' file: data:")


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _link(cluster: int) -> str:
    return f'<a href="#cluster-{cluster}">{cluster}</a>'


def _warning(summary: AtlasSummary) -> str:
    """Whether the clusters matter at all comes before what each does."""
    found = (
        f"With even maps in this stage the answers lose {summary.lost:.2f} log-odds on average, and "
        f"{percent(summary.changed)} of them change."
    )
    if summary.carries:
        return f"<p>{found}</p>"
    return (
        f'<p class="warning"><b>The clusters of this stage carry nothing.</b> {found} Their maps are decoration, and '
        "what follows says little about the decisions: try another --stage.</p>"
    )


def _classes(classes: Sequence[AtlasClass], summary: AtlasSummary) -> str:
    known = summary.background is not None
    objects = '<th class="number">importance on background</th><th class="number">background area</th>' if known else ""
    rows = "".join(_class(one, known) for one in classes if one.images or one.answered)
    return (
        '<div class="ranking" tabindex="0" role="region" aria-label="Classes"><table><thead><tr>'
        f'<th>class</th><th class="number">images</th><th class="number">right</th>{objects}'
        f"<th>clusters that speak most for it</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _class(one: AtlasClass, known: bool) -> str:
    mark = ' <span class="label warn">no less than chance</span>' if one.shortcut else ""
    objects = f'<td class="number">{percent(one.background)}{mark}</td><td class="number">{percent(one.area)}</td>'
    links = ", ".join(map(_link, one.clusters)) or "none"
    right = percent(one.right / one.images if one.images else None)
    return (
        f'<tr><th scope="row">{escape(one.name)}</th><td class="number">{one.images}</td>'
        f'<td class="number">{right}</td>'
        f"{objects if known else ''}<td>{links}</td></tr>"
    )


def _mistakes(clusters: Sequence[AtlasCluster], summary: AtlasSummary) -> str:
    wrong = summary.images - summary.right
    if not wrong:
        return "<p>All answers are right.</p>"
    rows = "".join(
        f'<tr><th scope="row">cluster {_link(one.number)}</th><td class="number">{percent(one.share_of_wrong)}</td>'
        f'<td class="number">{percent(one.share)}</td></tr>'
        for one in behind_mistakes(clusters, SHOWN_MISTAKES)
    )
    return (
        f"<p>{wrong} of {summary.images} answers are wrong. These clusters have a larger share of the importance there "
        "than elsewhere; with few wrong answers that may be chance.</p>"
        '<div class="scroll"><table><thead><tr><th></th><th class="number">share of importance, wrong answers</th>'
        f'<th class="number">all answers</th></tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _like(tiles: Mapping[int, Tile]) -> str:
    first = next(iter(tiles.values())).region.cluster
    return (
        '<section class="image" aria-labelledby="like"><div class="inside">'
        f'<h2 id="like">Where cluster {_link(first)} fires alike</h2>{_rows(tiles)}</div></section>'
    )


def _section(section: Section, classes: Sequence[AtlasClass], summary: AtlasSummary) -> str:
    one = section.figures
    order = {"share": one.share, "purity": one.purity, "background": one.background or 0.0}
    order |= {"wrong": one.share_of_wrong - one.share, "peak": one.strength, "number": -one.number}
    keys = " ".join(f'data-{key}="{value:.6f}"' for key, value in order.items())
    return (
        f'<article class="image cluster" id="cluster-{one.number}" aria-labelledby="name-{one.number}" {keys}>'
        f'<div class="inside"><h2 id="name-{one.number}">Cluster {one.number}{_marks(one)}</h2>'
        f'<div class="about">{_figures(one, summary)}{_bars(one, classes)}</div>{_rows(section.tiles)}</div></article>'
    )


def _marks(one: AtlasCluster) -> str:
    return ' <span class="label warn">on the background no less than chance</span>' if one.shortcut else ""


def _figures(one: AtlasCluster, summary: AtlasSummary) -> str:
    rows = {"share of importance": percent(one.share), "in wrong answers": percent(one.share_of_wrong)}
    if one.label is not None:
        rows["purity"] = f"{percent(one.purity)} {escape(one.label)} (chance {percent(one.chance)})"
    if one.on_object is not None and summary.area is not None:
        rows["map on the object"] = f"{percent(one.on_object)} (chance {percent(1 - summary.area)})"
        rows["importance on background"] = f"{percent(one.background)} (chance {percent(summary.area)})"
    rows["mean peak"] = f"{one.strength:.1f} × flat"
    if one.nearest:
        rows["nearest"] = ", ".join(f"{_link(other)} ({number(value)})" for other, value in one.nearest)
    return f'<dl class="facts">{"".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in rows.items())}</dl>'


def _bars(one: AtlasCluster, classes: Sequence[AtlasClass]) -> str:
    """The answers it speaks for most, and the one it speaks against most or for least, in log-odds."""
    known = [(value, of.name) for value, of in zip(one.by_class, classes, strict=True) if value is not None]
    known.sort(key=lambda pair: -pair[0])
    widest = max([abs(value) for value, _ in known] or [0.0]) or 1.0
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{number(value, 3)}</dd>"
        '<svg class="probability" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="8" rx="2"/>'
        f'<rect class="{"gain" if value > 0 else "loss"}" width="{100 * abs(value) / widest:.2f}" height="8" rx="2"/>'
        "</svg></div>"
        for value, name in [*known[:SHOWN_CLASSES], *known[SHOWN_CLASSES:][-1:]]
    )
    return f'<div><p class="quiet">mean importance, by answer</p><dl class="bars">{rows}</dl></div>'


def _rows(tiles: Mapping[int, Tile]) -> str:
    return "".join(
        f'<h3>{name} <span class="quiet">{about}</span></h3><div class="regions">{"".join(found)}</div>'
        for kind, (name, about) in KINDS.items()
        if (found := [_tile(place, tile) for place, tile in tiles.items() if tile.region.kind == kind])
    )


def _tile(place: int, tile: Tile) -> str:
    region = tile.region
    wrong = tile.label is not None and tile.label != tile.answer
    told = f"Cluster {region.cluster} on {tile.name}, answered {tile.answer}"
    told += f" but it is {tile.label}" if wrong else ""
    told += f": peak {region.strength:.1f} times flat, importance {number(region.importance, 3)}"
    name = (
        f'<span class="wrong">{escape(tile.answer)}</span>, is {escape(tile.label or "")}'
        if wrong
        else escape(tile.answer)
    )
    similar = " ".join(f"{other}:{cosine:.3f}" for other, cosine in tile.alike)
    return (
        f'<figure class="tile"><button type="button" class="show" id="region-{place}" aria-pressed="false" '
        f'data-alike="{similar}" data-cluster="{region.cluster}" title="{escape(told)}" aria-label="{escape(told)}">'
        f'<svg class="region" viewBox="{tile.place * TILE} 0 {TILE} {TILE}" aria-hidden="true">'
        f'<image href="{escape(tile.picture)}" width="{tile.places * TILE}" height="{TILE}"/></svg></button>'
        f'<figcaption>{name}<br><span class="quiet">{number(region.importance, 3)}</span></figcaption></figure>'
    )
