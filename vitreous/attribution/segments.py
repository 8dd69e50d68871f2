"""Segments: an image divided into connected-looking parts, to be shown or hidden as a whole.

Where the network has clusters, positions that attend to the same clusters belong together; elsewhere, as in SLIC
(Achanta et al., "SLIC superpixels", 2012), those of a like colour. Both are k-means++ (Arthur, Vassilvitskii, 2007) of
what a position looks like and where it lies.

Shapes: B images, H W grid, N = H W positions, D numbers that describe a position, K segments.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.controls import noise_for
from vitreous.attribution.fill import blurred
from vitreous.attribution.frame import of_picture
from vitreous.attribution.method import clustered_stages, find_trunk
from vitreous.layers.tap import record

COLOUR_CELLS = 32  # of the longer side, on whose grid colours are compared
COLOUR_BLUR = 1 / 64  # standard deviation, in sides of the image: texture is no border
ROUNDS = 10  # of k-means; later ones move few positions


def segments(model: nn.Module, images: Tensor, count: int) -> Tensor:
    """Each image's segments as masks of a grid, (B, K, H, W) of 0 and 1, at most `count`; some may be empty."""
    looks = appearance(model, images)
    B, _, H, W = looks.shape
    looks = looks - looks.mean((2, 3), keepdim=True)
    looks = looks / looks.norm(dim=1).mean((1, 2)).clamp_min(1e-12).view(-1, 1, 1, 1)  # of mean length one
    down, across = (torch.linspace(-1, 1, 2 * side + 1)[1::2] for side in (H, W))
    places = torch.stack([down[:, None].expand(H, W), across.expand(H, W)])  # (2, H, W)
    described = torch.cat([looks, places.to(looks).expand(B, -1, -1, -1)], 1).flatten(2).transpose(1, 2)  # (B, N, D)
    K = min(count, H * W)
    labels = k_means(described, noise_for(images, K).cpu())
    return F.one_hot(labels, K).transpose(1, 2).unflatten(2, (H, W)).to(images.device, torch.float32)


def appearance(model: nn.Module, images: Tensor) -> Tensor:
    """What each position looks like, (B, D, H, W): its attention over clusters, or its colour.

    In double precision, and so on the processor: whether images come alone or together must not move a border.
    """
    backbone = find_trunk(model)
    stages = clustered_stages(backbone) if backbone is not None else []
    if backbone is None or not stages:
        step = max(images.shape[2:]) / COLOUR_CELLS
        grid = [max(1, round(side / step)) for side in images.shape[2:]]
        smooth = blurred(images, COLOUR_BLUR * min(images.shape[2:]))
        return F.interpolate(smooth, grid, mode="area").cpu().double()
    with torch.no_grad(), record(backbone, f"stages.{stages[-1] - 1}.blocks.*.attention.map") as seen:
        model(images)
    maps = torch.stack([attention.float().mean(1) for attention in seen.values()]).mean(0)  # (B, M, H, W)
    return of_picture(maps, model).cpu().double()


def k_means(points: Tensor, noise: Tensor) -> Tensor:
    """The segment of each of the points (B, N, D): (B, N). `noise` (B, K), between 0 and 1, draws the first centres."""
    B, N, _ = points.shape
    each = torch.arange(B, device=points.device)
    chosen = (noise[:, 0] * N).long().clamp_max(N - 1)
    centres = points[each, chosen][:, None]  # (B, 1, D)
    for drawn in noise.T[1:]:  # far points are drawn more often
        far = torch.cdist(points, centres).amin(2).square().cumsum(1)  # (B, N)
        chosen = torch.searchsorted(far, (drawn.to(far) * far[:, -1])[:, None])[:, 0].clamp_max(N - 1)
        centres = torch.cat([centres, points[each, chosen][:, None]], 1)
    for _ in range(ROUNDS):
        member = F.one_hot(torch.cdist(points, centres).argmin(2), centres.shape[1]).to(points)  # (B, N, K)
        size = member.sum(1)[:, :, None]
        centres = torch.where(size > 0, member.transpose(1, 2) @ points / size.clamp_min(1), centres)
    return torch.cdist(points, centres).argmin(2)
