"""Regions an atlas has kept: which are alike, and how they are drawn.

Shapes: R regions, H W grid of a map.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageFilter
from torch import Tensor

from vitreous.clusters.layer import stretch
from vitreous.clusters.top_k import TopK
from vitreous.drawing.panels import enlarge_heat

TILE = 120  # pixels of a drawn region
SIMILAR_PER_REGION = 8  # regions named as similar to one
SMALLEST_CROP = 0.5  # of the picture's shorter side, so that the surroundings of a region are visible


class Region(NamedTuple):
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


def regions_of(kept: TopK, row: int, cluster: int, kind: str) -> list[Region]:
    one = {name: value[row] for name, value in kept.fields.items()}
    return [
        Region(
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


def similar_regions(regions: Sequence[Region]) -> list[list[tuple[int, float]]]:
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
