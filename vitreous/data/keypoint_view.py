"""One object of a picture, cut out upright at a fixed size, with a heat map for each of its keypoints.

After "Simple Baselines for Human Pose Estimation and Tracking" (Xiao et al. 2018), with one difference: coordinates are
continuous, pixel i covers i to i + 1, for pictures and heat maps alike. A keypoint at x in the crop lies at
x / stride - 0.5 in cells of the heat map, and nothing shifts when a picture is mirrored.

Legend: h w crop, K keypoints.
"""

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.joint import swapped
from vitreous.data.transforms import Preprocess, to_bytes
from vitreous.errors import InputError

BOX_MARGIN = 1.25  # times the box, so that some of the surroundings is seen
HEATMAP_REACH_SIGMAS = 3  # a keypoint further beyond the edge leaves no trace in a heat map

Affine = NDArray[np.float64]  # (2, 3)


@dataclass(frozen=True)
class KeypointView:
    """The first object of the target; in training randomly scaled, turned and mirrored.

    Args:
        size: (h, w) of the crop.
        rotation: Standard deviation of the angle in degrees, up to twice that; three in five pictures are turned.
        scale: Standard deviation of the scale, up to that much either way.
        stride: Pixels of the crop for a cell of the heat map.
        sigma: Width of a keypoint in cells.
    """

    preprocess: Preprocess
    size: tuple[int, int] = (256, 192)
    flip: float = 0.5
    rotation: float = 40.0
    scale: float = 0.3
    train: bool = True
    stride: int = 4
    sigma: float = 2.0

    def __post_init__(self) -> None:
        if len(self.size) != 2 or any(side < self.stride or side % self.stride for side in self.size):
            raise InputError(f"size {self.size} cannot be used; height and width must be multiples of {self.stride}")
        if not 0 <= self.flip <= 1:
            raise InputError(f"flip {self.flip} is a probability; it must lie between 0 and 1")
        if not 0 <= self.scale < 1 or self.rotation < 0 or self.sigma <= 0:
            raise InputError(
                f"scale {self.scale}, rotation {self.rotation} and sigma {self.sigma} cannot be used; "
                "scale must be at least 0 and below 1, rotation at least 0 and sigma above 0"
            )

    def __call__(self, picture: Image.Image, target: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        single = target["objects"][:1]
        mirrored = self.train and random.random() < self.flip  # noqa: S311  (not a secret)
        to_picture = self._to_picture(single.boxes[0], mirrored)
        height, width = self.size
        crop = picture.transform(
            (width, height), Image.Transform.AFFINE, to_picture.ravel().tolist(), Image.Resampling.BILINEAR
        )
        points = swapped(single.keypoints, single)[0] if mirrored else single.keypoints[0]  # (K, 3)
        heatmaps, weights = self._heatmaps(_apply(_inverse(to_picture), points[:, :2]), points[:, 2] > 0)
        scored = {"annotated", "box_score"} & target.keys() if not self.train else set()
        return to_bytes(crop), {
            **{key: target[key] for key in sorted(scored)},  # for the metric alone
            "heatmaps": heatmaps,
            "weights": weights,
            "to_picture": torch.from_numpy(to_picture.astype(np.float32)),
            "image_id": torch.tensor(target["image_id"]),
            "id": torch.from_numpy(single.ids)[0],
            "labels": torch.from_numpy(single.labels)[0],
            "area": torch.from_numpy(single.area)[0],
            "boxes": torch.from_numpy(single.boxes)[0],
            "keypoints": torch.from_numpy(single.keypoints)[0],  # of the picture, not of the crop
        }

    def _to_picture(self, box: NDArray[np.float64], mirrored: bool) -> Affine:
        """Crop to picture."""
        scale, angle = 1.0, 0.0
        if self.train:
            scale = min(max(random.gauss(1, self.scale), 1 - self.scale), 1 + self.scale)
            if random.random() < 0.6:  # noqa: S311
                angle = min(max(random.gauss(0, self.rotation), -2 * self.rotation), 2 * self.rotation)
        return crop_to_picture(box, self.size, scale=scale, angle=angle, mirrored=mirrored)

    def _heatmaps(self, points: NDArray[np.float64], there: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        """(K, h / stride, w / stride) and (K,); a keypoint that cannot be seen in the crop has no weight."""
        height, width = (side // self.stride for side in self.size)
        cells = points / self.stride - 0.5  # (K, 2)
        reach = HEATMAP_REACH_SIGMAS * self.sigma
        there = there & (cells >= -reach).all(1) & (cells <= np.array([width, height]) - 1 + reach).all(1)
        down = np.arange(height)[:, None] - cells[:, 1, None, None]  # (K, h, 1)
        across = np.arange(width) - cells[:, 0, None, None]  # (K, 1, w)
        maps = np.exp(-(down**2 + across**2) / (2 * self.sigma**2)) * there[:, None, None]
        return torch.from_numpy(maps.astype(np.float32)), torch.from_numpy(there.astype(np.float32))


def crop_to_picture(
    box: NDArray[np.float64], size: tuple[int, int], *, scale: float = 1.0, angle: float = 0.0, mirrored: bool = False
) -> Affine:
    """From the pixels of a crop (h, w) to those of the picture; the crop holds the box with a margin around it.

    The same for a box found by a detector as for one that was drawn by hand.
    """
    height, width = size
    x0, y0, x1, y1 = box
    # Pixels of the picture for a pixel of the crop: as many as both sides of the box need.
    step = max((x1 - x0) / width, (y1 - y0) / height) * BOX_MARGIN * scale
    cos, sin = step * math.cos(math.radians(angle)), step * math.sin(math.radians(angle))
    turn = np.array([[cos, -sin], [sin, cos]])
    if mirrored:
        turn[:, 0] *= -1
    middle = np.array([(x0 + x1) / 2, (y0 + y1) / 2])
    return np.column_stack([turn, middle - turn @ np.array([width / 2, height / 2])])


def _inverse(affine: Affine) -> Affine:
    turn = np.linalg.inv(affine[:, :2])
    return np.column_stack([turn, -turn @ affine[:, 2]])


def _apply(affine: Affine, points: NDArray[np.floating]) -> NDArray[np.float64]:
    """(K, 2) to (K, 2)."""
    return points @ affine[:, :2].T + affine[:, 2]
