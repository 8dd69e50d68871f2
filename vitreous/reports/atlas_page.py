"""An atlas of clusters as one page beside its pictures. Equal atlases give equal bytes.

Regions of a cluster are side by side in one picture, of which each tile shows a part. The script orders the clusters
and shows which regions are alike; without it the page still shows everything else.

Shapes: R regions, H W grid of a map.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageFilter
from torch import Tensor

from vitreous.clusters.atlas import TopK
from vitreous.clusters.atlas_figures import AtlasClass, AtlasCluster, AtlasSummary, behind_mistakes
from vitreous.clusters.layer import stretch
from vitreous.drawing.panels import enlarge_heat
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
THUMBNAILS = 3  # regions of a cluster before it is opened
TILE = 120  # pixels of a drawn region
SIMILAR_PER_REGION = 8  # regions named as similar to one
SMALLEST_CROP = 0.5  # of the picture's shorter side, so that the surroundings of a region are visible


class AtlasRegion(NamedTuple):
    """One cluster on one image."""

    cluster: int
    kind: str  # why it was kept
    image: int  # number within the data
    label: int
    answer: int
    strength: float
    importance: float
    map: Tensor  # (H, W)
    token: Tensor  # (C,)


class Tile(NamedTuple):
    """A region where it is drawn."""

    region: AtlasRegion
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
        styles=["page.css", "report.css", "atlas.css"],
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
        thumbs=THUMBNAILS,
    )


def _bars(one: AtlasCluster, classes: Sequence[AtlasClass]) -> dict[str, Any]:
    """The answers it speaks for most, and the one it speaks against most or for least, in log-odds."""
    known = [(value, of.name) for value, of in zip(one.by_class, classes, strict=True) if value is not None]
    known.sort(key=lambda pair: -pair[0])
    shown = [*known[:BARS], *known[BARS:][-1:]]
    return {"bars": shown, "widest": max([abs(value) for value, _ in known] or [0.0]) or 1.0}


def regions_of(kept: TopK, row: int, cluster: int, kind: str) -> list[AtlasRegion]:
    one = {name: value[row] for name, value in kept.fields.items()}
    return [
        AtlasRegion(
            cluster,
            kind,
            image=int(one["image"][place]),
            label=int(one["label"][place]),
            answer=int(one["answer"][place]),
            strength=float(one["strength"][place]),
            importance=float(one["importance"][place]),
            map=one["map"][place],
            token=one["token"][place],
        )
        for place in range(kept.count(row))
    ]


def similar_regions(regions: Sequence[AtlasRegion]) -> list[list[tuple[int, float]]]:
    """For each region the most similar ones in other images, one per image: their places in the list and the cosine."""
    if not regions:
        return []
    tokens = F.normalize(torch.stack([region.token for region in regions]), dim=1)
    images = [region.image for region in regions]
    found = []
    for place, cosine in enumerate(tokens @ tokens.T):
        seen, near = {images[place]}, []
        for other in cosine.argsort(descending=True, stable=True).tolist():
            if images[other] not in seen:
                seen.add(images[other])
                near.append((other, float(cosine[other])))
            if len(near) == SIMILAR_PER_REGION:
                break
        found.append(near)
    return found


def draw_region(picture: Image.Image, heat: Tensor) -> Image.Image:
    """The part of the picture around the map's peak, with the places above half its height outlined: TILE x TILE.

    Args:
        picture: As the model sees it.
        heat: The map, (H, W).
    """
    height = stretch(heat).numpy()
    left, top, side = _crop_window(height, picture.width, picture.height)
    box = left, top, left + side, top + side
    tile = picture.convert("RGB").resize((TILE, TILE), Image.Resampling.BICUBIC, box=box)
    # Enlarge first, crop then: the edge of a cropped map would bend the outline.
    scale = TILE / side
    large = enlarge_heat(height, (round(picture.width * scale), round(picture.height * scale)))
    inside = Image.fromarray((large >= 0.5).astype(np.uint8) * 255)
    corner = round(left * scale), round(top * scale)
    inside = inside.crop((*corner, corner[0] + TILE, corner[1] + TILE))
    tile.paste("#000000", mask=_outline(inside, 5))
    tile.paste("#ffffff", mask=_outline(inside, 3))
    return tile


def _crop_window(height: np.ndarray, width: int, tall: int) -> tuple[float, float, float]:
    """Left, top and side of a square in the picture, around the peak and about twice as wide as the region."""
    rows, columns = height.shape
    shorter = min(width, tall)
    area = (height >= 0.5).mean() * width * tall
    side = float(np.clip(2 * np.sqrt(area), SMALLEST_CROP * shorter, shorter))
    row, column = np.unravel_index(int(height.argmax()), height.shape)
    across, down = (column + 0.5) / columns * width, (row + 0.5) / rows * tall
    return (
        float(np.clip(across - side / 2, 0, width - side)),
        float(np.clip(down - side / 2, 0, tall - side)),
        side,
    )


def _outline(inside: Image.Image, thickness: int) -> Image.Image:
    """The outline of a white area, half of it within; none along the border of the picture."""
    grown = np.asarray(inside.filter(ImageFilter.MaxFilter(thickness)))
    shrunk = np.asarray(inside.filter(ImageFilter.MinFilter(thickness)))
    return Image.fromarray(grown & ~shrunk)


def region_strip(tiles: Sequence[Image.Image]) -> Image.Image:
    """Drawn regions side by side."""
    sheet = Image.new("RGB", (TILE * len(tiles), TILE))
    for place, tile in enumerate(tiles):
        sheet.paste(tile, (place * TILE, 0))
    return sheet
