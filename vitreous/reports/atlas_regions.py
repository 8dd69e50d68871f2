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
ALIKE = 8  # regions named as similar to one
SMALLEST_CROP = 0.5  # of the picture's shorter side, so that what surrounds a region is seen


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


def alike(regions: Sequence[Region]) -> list[list[tuple[int, float]]]:
    """For each region the most similar ones of other images, one an image: their places in the list and the cosine."""
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
            if len(near) == ALIKE:
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
    left, top, side = window(height, picture.width, picture.height)
    box = left, top, left + side, top + side
    tile = picture.convert("RGB").resize((TILE, TILE), Image.Resampling.BICUBIC, box=box)
    # Enlarged as a whole and cut then: the edge of a cut-out map would bend the outline.
    scale = TILE / side
    large = enlarge_heat(height, (round(picture.width * scale), round(picture.height * scale)))
    inside = Image.fromarray((large >= 0.5).astype(np.uint8) * 255)
    corner = round(left * scale), round(top * scale)
    inside = inside.crop((*corner, corner[0] + TILE, corner[1] + TILE))
    tile.paste("#000000", mask=edge(inside, 5))
    tile.paste("#ffffff", mask=edge(inside, 3))
    return tile


def window(height: np.ndarray, width: int, tall: int) -> tuple[float, float, float]:
    """Left, top and side of a square within a picture, about the peak and about twice as wide as the region."""
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


def edge(inside: Image.Image, thickness: int) -> Image.Image:
    """The border of a white area, half of it within; the picture's own border is none."""
    grown = np.asarray(inside.filter(ImageFilter.MaxFilter(thickness)))
    shrunk = np.asarray(inside.filter(ImageFilter.MinFilter(thickness)))
    return Image.fromarray(grown & ~shrunk)


def strip(tiles: Sequence[Image.Image]) -> Image.Image:
    """Drawn regions side by side."""
    sheet = Image.new("RGB", (TILE * len(tiles), TILE))
    for place, tile in enumerate(tiles):
        sheet.paste(tile, (place * TILE, 0))
    return sheet
