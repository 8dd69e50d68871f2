"""Random numbers for controls."""

import zlib

import torch
from torch import Tensor


def noise_for(images: Tensor, *shape: int, seed: int = 0) -> Tensor:
    """Between 0 and 1, (B, *shape): drawn anew for every image, but the same whenever that image comes again."""
    rows = []
    for image in images:
        drawn = torch.Generator().manual_seed(zlib.crc32(image.cpu().contiguous().numpy().tobytes()) + seed)
        rows.append(torch.rand(shape, generator=drawn))
    return torch.stack(rows).to(images.device)
