"""Small batches for detectors, as `data/joint.py` makes them."""

from typing import Any

import torch
from torch import Tensor

HEIGHT, WIDTH = 64, 96
Rows = list[tuple[float, float, float, float]]


def images(count: int) -> Tensor:
    return torch.randn(count, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0))


def targets(
    *pictures: Rows, crowd: tuple[bool, ...] = (), sizes: list[tuple[int, int]] | None = None
) -> dict[str, Any]:
    """Objects of each picture by box; their classes are 0, 1, 2, 0, …; `crowd` is for all objects of a picture."""
    boxes = [torch.tensor(rows, dtype=torch.float32).reshape(-1, 4) for rows in pictures]
    masks = [torch.zeros(len(rows), HEIGHT, WIDTH, dtype=torch.uint8) for rows in pictures]
    for mask, rows in zip(masks, pictures, strict=True):
        for layer, row in zip(mask, rows, strict=True):
            x0, y0, x1, y1 = map(int, row)
            layer[max(y0, 0) : max(y1, 0), max(x0, 0) : max(x1, 0)] = 1
    crowds = crowd or (False,) * len(pictures)
    return {
        "boxes": boxes,
        "labels": [torch.arange(len(rows)) % 3 for rows in pictures],
        "crowd": [torch.full((len(rows),), each) for rows, each in zip(pictures, crowds, strict=True)],
        "masks": masks,
        "sizes": torch.tensor(sizes or [(HEIGHT, WIDTH)] * len(pictures)),
    }
