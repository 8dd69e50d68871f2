"""A part of a picture, brought to another size and perhaps mirrored, with everything that lies in it.

Pixel i covers i to i + 1 in all coordinates, so that a box, a mask, a keypoint and the pixels themselves stay together
at any scale.

Legend: H W the picture, h w the result, n objects.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.annotations import Objects, require_room
from vitreous.data.run_lengths import CocoSegmentation
from vitreous.data.transforms import resampling, to_bytes
from vitreous.files.limits import MAX_CORNER_PIXELS


@dataclass(frozen=True)
class Window:
    box: tuple[float, float, float, float]  # left, top, right, bottom in the picture
    size: tuple[int, int]  # (h, w) of the result
    mirrored: bool = False

    @property
    def scale(self) -> tuple[float, float]:
        """Across and down."""
        left, top, right, bottom = self.box
        return self.size[1] / (right - left), self.size[0] / (bottom - top)

    def pixels(self, picture: Image.Image, interpolation: str) -> Tensor:
        """(3, h, w) bytes."""
        found = to_bytes(self._cut(picture, resampling(interpolation)))
        return found.flip(-1) if self.mirrored else found

    def values(self, labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """(H, W) of class numbers to (h, w), none of them blended."""
        found = np.asarray(self._cut(Image.fromarray(labels), Image.Resampling.NEAREST))
        return found[:, ::-1] if self.mirrored else found

    def points(self, points: NDArray[np.floating]) -> NDArray[np.float64]:
        """(..., 2) x and y."""
        found = (points - np.array(self.box[:2])) * np.array(self.scale)
        if self.mirrored:
            found[..., 0] = self.size[1] - found[..., 0]
        return found

    def boxes(self, boxes: NDArray[np.floating]) -> NDArray[np.float64]:
        """(n, 4), cut off where the result ends."""
        corners = self.points(boxes.reshape(-1, 2, 2))  # (n, 2, 2)
        if self.mirrored:
            corners[:, :, 0] = corners[:, ::-1, 0]
        return np.clip(corners, 0, np.array(self.size[::-1])).reshape(-1, 4)

    def masks(self, objects: Objects, height: int, width: int) -> NDArray[np.uint8]:
        """(n, h, w); polygons are drawn at their new place, everything else as the pixels go."""
        assert objects.masks is not None
        require_room(len(objects), *self.size)
        found = np.zeros((len(objects), *self.size), np.uint8)
        for place, segmentation in enumerate(objects.masks):
            found[place] = self._mask(objects[[place]], segmentation, height, width)
        return found

    def _mask(self, single: Objects, segmentation: CocoSegmentation, height: int, width: int) -> NDArray[np.uint8]:
        moved = [self.points(np.reshape(polygon, (-1, 2))).ravel() for polygon in segmentation if type(polygon) is list]
        # Enlarged, an outline may go too far to be drawn.
        if isinstance(segmentation, dict) or any(np.abs(polygon).max() >= MAX_CORNER_PIXELS for polygon in moved):
            return self.values(single.decoded_masks(height, width)[0].astype(np.uint8))
        return (
            replace(single, masks=([polygon.tolist() for polygon in moved],))
            .decoded_masks(*self.size)[0]
            .astype(np.uint8)
        )

    def _cut(self, picture: Image.Image, how: Image.Resampling) -> Image.Image:
        height, width = self.size
        left, top, right, bottom = self.box
        # A rounding error beyond the edge is refused by Pillow.
        inside = max(left, 0.0), max(top, 0.0), min(right, float(picture.width)), min(bottom, float(picture.height))
        return picture.resize((width, height), how, box=inside)


def keypoints_in(window: Window, objects: Objects) -> Tensor:
    """(n, K, 3); those that are cut off count as absent; a horizontal flip swaps left and right."""
    assert objects.keypoints is not None
    found = objects.keypoints.astype(np.float32)
    found[..., :2] = window.points(objects.keypoints[..., :2])
    outside = (found[..., :2] < 0).any(-1) | (found[..., :2] >= np.array(window.size[::-1])).any(-1)
    found[outside | (found[..., 2] == 0)] = 0
    return torch.from_numpy(swapped(found, objects) if window.mirrored else found)


def swapped(keypoints: NDArray[np.float32], objects: Objects) -> NDArray[np.float32]:
    """(n, K, ...) with the left ones in the place of the right ones."""
    order = np.arange(keypoints.shape[1])
    for left, right in objects.keypoint_pairs:
        order[left], order[right] = right, left
    return keypoints[:, order]
