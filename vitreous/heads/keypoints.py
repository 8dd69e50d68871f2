"""Keypoints of one object in a crop: a heat map per joint (SimpleBaseline), and the position of its peak.

Xiao, Wu, Wei: "Simple Baselines for Human Pose Estimation and Tracking", arXiv 1804.06208. Sub-pixel positions by a
Taylor series around the peak, not by a quarter of a cell as there: Zhang et al., "Distribution-Aware Coordinate
Representation for Human Pose Estimation" (DARK), arXiv 1910.06278.

Positions are in pixels from the upper left corner of the crop, as those of boxes: the centre of the first pixel is
(0.5, 0.5), and cell (i, j) of a heat map of stride s has its centre at ((j + 0.5) s, (i + 0.5) s). So a
mirrored crop has mirrored positions, and averaging both shifts nothing.

Shapes: B batch, K joints, h w heat map.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.transforms.functional import gaussian_blur

from vitreous.errors import InputError
from vitreous.heads import check_arguments
from vitreous.heads.pyramid import Levels, OnLevels, feature_network

HEATMAP_STRIDE = 4
BLOB_SIGMA = 2.0  # standard deviation in cells of the blobs that models are trained on


class SimpleBaseline(OnLevels):
    """Crops (B, 3, H, W) -> heat maps (B, K, ceil(H / 4), ceil(W / 4)), or losses when there are targets.

    Transposed convolutions double the backbone's coarsest map until it has stride 4.
    """

    def __init__(self, levels: Levels, joints: int, *, width: int = 256) -> None:
        super().__init__()
        if joints < 1 or width < 1:
            raise InputError(f"joints={joints}, width={width} given; both must be at least 1")
        doublings = (levels.strides[-1] // HEATMAP_STRIDE).bit_length() - 1
        layers: list[nn.Module] = []
        for step in range(doublings):
            up = nn.ConvTranspose2d(width if step else levels.channels[-1], width, 4, 2, 1, bias=False)
            nn.init.normal_(up.weight, std=0.001)
            layers += [up, nn.BatchNorm2d(width), nn.ReLU()]
        self.levels = levels
        self.deconvolutions = nn.Sequential(*layers)
        self.heatmaps = nn.Conv2d(width if doublings else levels.channels[-1], joints, 1)
        nn.init.normal_(self.heatmaps.weight, std=0.001)
        nn.init.zeros_(self.heatmaps.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor, targets: Mapping[str, Tensor] | None = None, sizes: Tensor | None = None) -> Any:
        """All crops have the same size, so `sizes` is not used."""
        H, W = images.shape[2:]
        heatmaps = self.heatmaps(self.deconvolutions(self.levels(images)[-1]))
        # Doubling a size that was rounded up gives too much.
        heatmaps = heatmaps[:, :, : -(-H // HEATMAP_STRIDE), : -(-W // HEATMAP_STRIDE)]
        return heatmaps if targets is None else self.losses(heatmaps, targets)

    @staticmethod
    def losses(heatmaps: Tensor, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Mean squared error; `weights` (B, K) leave out joints that are not annotated."""
        error = (heatmaps.float() - targets["heatmaps"]).square().mean((2, 3))  # (B, K)
        return {"heatmaps": (error * targets["weights"]).mean()}


def build_keypoints(backbone: nn.Module, joints: int, **head_args: Any) -> SimpleBaseline:
    """SimpleBaseline on a backbone, which becomes part of the model.

    Args:
        backbone: One of our models, or one that timm made with `features_only=True`.
        head_args: Arguments of `SimpleBaseline`: width=256, channels of the transposed convolutions.
    """
    check_arguments("heatmaps", head_args, list(inspect.signature(SimpleBaseline).parameters)[2:])
    coarsest = max(feature_network(backbone).feature_info.reduction())
    return SimpleBaseline(Levels(backbone, (coarsest,)), joints, **head_args)


def flip_test(model: Callable[[Tensor], Tensor], images: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Heat maps averaged with those of the mirrored crops, in which the joints of each pair swap."""
    heatmaps = model(images)
    order = torch.arange(heatmaps.shape[1])
    for left, right in pairs:
        if not 0 <= min(left, right) <= max(left, right) < len(order):
            raise InputError(f"pair {(left, right)} given; this model has joints 0 to {len(order) - 1}")
        order[left], order[right] = right, left
    mirrored = model(images.flip(3)).flip(3)[:, order]
    return (heatmaps + mirrored) / 2


def decode_keypoints(heatmaps: Tensor, to_picture: Tensor | None = None) -> Tensor:
    """Joints (B, K, 3): x, y and the height of the peak.

    `to_picture`: (B, 2, 3) affine maps from the crop to the picture; without them positions are the crop's.
    """
    w = heatmaps.shape[3]
    heatmaps = heatmaps.float()
    score, peak = heatmaps.flatten(2).max(2)  # (B, K)
    cell = torch.stack([peak % w, peak // w], -1)  # (B, K, 2), x first
    place = (cell + 0.5 + taylor_offset(heatmaps, cell, BLOB_SIGMA)) * HEATMAP_STRIDE  # (B, K, 2)
    if to_picture is not None:
        place = place @ to_picture[:, :, :2].to(place).transpose(1, 2) + to_picture[:, None, :, 2].to(place)
    return torch.cat([place, score[..., None]], -1)


def taylor_offset(heatmaps: Tensor, cell: Tensor, sigma: float) -> Tensor:
    """Offsets (B, K, 2) from the highest cells to the sub-cell peaks, of smoothed maps away from the border.

    Smoothing keeps noise out of the derivatives. Near a border it would pull the peak inwards by up to a cell, so the
    map is used there as it is.
    """
    h, w = heatmaps.shape[2:]
    reach = round(2.5 * sigma)
    room = torch.minimum(cell, cell.new_tensor([w - 1, h - 1]) - cell).amin(-1, keepdim=True) > reach  # (B, K, 1)
    plain = offset_to_peak(heatmaps, cell)
    if not reach or min(h, w) <= reach:
        return plain
    smooth = gaussian_blur(heatmaps, [2 * reach + 1] * 2, [sigma] * 2)
    return torch.where(room, offset_to_peak(smooth, cell), plain)


def offset_to_peak(heatmaps: Tensor, cell: Tensor) -> Tensor:
    """Offsets (B, K, 2) to the peaks of the paraboloids that fit the logarithm around the cells.

    The logarithm of a Gaussian is a paraboloid, so its peak is exact. If there is no peak at the cell (on a plateau, or
    at a border), or it is more than a cell away, the offset is 0.
    """
    z = neighbourhood(heatmaps.clamp(min=1e-10).log(), cell)  # (B, K, 3, 3)
    gradient = torch.stack([z[..., 1, 2] - z[..., 1, 0], z[..., 2, 1] - z[..., 0, 1]], -1) / 2
    xx, yy = z[..., 1, 2] + z[..., 1, 0] - 2 * z[..., 1, 1], z[..., 2, 1] + z[..., 0, 1] - 2 * z[..., 1, 1]
    xy = (z[..., 2, 2] + z[..., 0, 0] - z[..., 2, 0] - z[..., 0, 2]) / 4
    determinant = xx * yy - xy * xy
    top = (determinant > 1e-12) & (xx < 0)
    inverse = torch.stack([torch.stack([yy, -xy], -1), torch.stack([-xy, xx], -1)], -2)  # times the determinant
    step = -(inverse @ gradient[..., None])[..., 0] / torch.where(top, determinant, 1.0)[..., None]
    inside = top & (step.abs().amax(-1) <= 1)
    return torch.where(inside[..., None], step, 0.0)


def neighbourhood(maps: Tensor, cell: Tensor) -> Tensor:
    """(B, K, 3, 3) values around each joint's cell; the map is extended by its edge values."""
    padded = F.pad(maps, [1] * 4, mode="replicate").flatten(2)
    width = maps.shape[3] + 2
    steps = torch.arange(3, device=maps.device)
    rows, columns = cell[..., 1, None] + steps, cell[..., 0, None] + steps  # (B, K, 3) each, in the padded map
    index = rows[..., :, None] * width + columns[..., None, :]  # (B, K, 3, 3)
    return padded.gather(2, index.flatten(2)).unflatten(2, index.shape[2:])
