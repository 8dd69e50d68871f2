"""An atlas of clusters as one page beside its pictures. Equal atlases give equal bytes.

Regions of a cluster are side by side in one picture, of which each tile shows a part. The script orders the clusters
and shows which regions are alike; without it the page still shows everything else.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vitreous.clusters.atlas_figures import AtlasClass, AtlasCluster, AtlasSummary, behind_mistakes
from vitreous.reports.atlas_regions import TILE, Region
from vitreous.reports.page import render_page

REGION_KINDS = {  # why a region was kept -> heading and what it means
    "top": ("Fires most", "highest peaks of its map over the data"),
    "typical": ("At random", "what it does on images that nobody chose"),
    "mistakes": ("Wrong answers it speaks for", "the most important first"),
    "asked": ("Asked for", "your image"),
    "like": ("Found over the data", "the most similar first"),
}
BARS = 3  # classes for which a cluster speaks most
SHOWN_MISTAKES = 6  # clusters behind wrong answers


class Tile(NamedTuple):
    """A region where it is drawn."""

    region: Region
    name: str  # of the image
    label: str | None  # None: not known
    answer: str
    picture: str  # the file with all regions of the cluster ...
    place: int  # ... the number of this one in it ...
    places: int  # ... of so many
    alike: tuple[tuple[int, float], ...]  # numbers of similar tiles, and the cosine


class Section(NamedTuple):
    figures: AtlasCluster
    tiles: Mapping[int, Tile]  # by their numbers within the page


def render_atlas(
    *,
    title: str,
    facts: Mapping[str, str],
    summary: AtlasSummary,
    classes: Sequence[AtlasClass],
    sections: Sequence[Section],
    like: Mapping[int, Tile],
) -> str:
    """The page; `like` are the regions found for an image that the user gave, that image first."""
    return render_page(
        "atlas",
        styles=["explanation.css", "atlas.css"],
        scripts=["atlas.js"],
        title=title,
        facts=facts,
        summary=summary,
        classes=classes,
        behind_mistakes=behind_mistakes([section.figures for section in sections], SHOWN_MISTAKES),
        sections=[section._asdict() | _bars(section.figures, classes) for section in sections],
        like=like,
        kinds=REGION_KINDS,
        side=TILE,
    )


def _bars(one: AtlasCluster, classes: Sequence[AtlasClass]) -> dict[str, Any]:
    """The answers it speaks for most, and the one it speaks against most or for least, in log-odds."""
    known = [(value, of.name) for value, of in zip(one.by_class, classes, strict=True) if value is not None]
    known.sort(key=lambda pair: -pair[0])
    shown = [*known[:BARS], *known[BARS:][-1:]]
    return {"bars": shown, "widest": max([abs(value) for value, _ in known] or [0.0]) or 1.0}
