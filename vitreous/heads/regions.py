"""Between boxes and maps: features of a region, mask targets, and pasting predicted masks.

Shapes: R regions of all images, C channels, n boxes of one image, M side of a mask.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import roi_align

from vitreous.heads.boxes import GroundTruth, Shape


class RegionAlign(nn.Module):
    """Features under each box, from the level that suits its size: (R, C, size, size)."""

    def __init__(self, strides: Sequence[int], size: int, samples: int) -> None:
        """`samples` per cell and side; 0 for as many as the cell has pixels of the level."""
        super().__init__()
        self.strides, self.size, self.samples = tuple(strides), size, samples

    def forward(self, features: Sequence[Tensor], boxes: list[Tensor]) -> Tensor:
        together = torch.cat(boxes)
        owner = torch.repeat_interleave(
            torch.arange(len(boxes), device=together.device),
            torch.tensor([len(b) for b in boxes], device=together.device),
        )
        regions = torch.cat([owner[:, None].to(together.dtype), together], 1)  # (R, 5)
        # Lin et al., equation 1: boxes of 224 pixels belong to stride 16, those of half that to stride 8.
        side = (together[:, 2:] - together[:, :2]).clamp(0).prod(1).sqrt()
        ideal = 4 + torch.log2(side / 224 + 1e-6).floor()
        steps = torch.tensor(self.strides, device=together.device).log2().round()
        level = (ideal[:, None] - steps).abs().argmin(1)
        parts, order = [], []
        for i, (maps, stride) in enumerate(zip(features, self.strides, strict=False)):  # those behind are not pooled
            index = (level == i).nonzero()[:, 0]
            # In single precision: a half has too few digits for a place in a large picture, bfloat16 by several pixels.
            part = roi_align(maps.float(), regions[index].float(), self.size, 1 / stride, self.samples, aligned=True)
            parts.append(part.to(maps.dtype))
            order.append(index)
        return torch.cat(parts)[torch.cat(order).argsort()]


def pool_some(
    align: RegionAlign, features: list[Tensor], boxes: list[Tensor], shapes: list[Shape]
) -> tuple[Tensor, float]:
    """Features of the regions and the weight 1; if there is none, of a whole image and 0.

    Every parameter then still gets a gradient, which several processes need, and norms meet no empty batch.
    """
    if any(map(len, boxes)):
        return align(features, boxes), 1.0
    whole = boxes[0].new_tensor([[0.0, 0.0, shapes[0][1], shapes[0][0]]])
    return align(features, [whole, *boxes[1:]]), 0.0


def mask_targets(boxes: Tensor, matched: Tensor, truth: GroundTruth, side: int) -> Tensor:
    """Masks of the matched objects within the boxes (n, M, M): 1 where the object is, 0 elsewhere."""
    assert truth.masks is not None
    if not len(boxes):
        return boxes.new_zeros(0, side, side)
    regions = torch.cat([matched[:, None].to(boxes), boxes], 1)
    parts = roi_align(truth.masks[:, None].to(boxes), regions, side, 1.0, 0, aligned=True)[:, 0]
    return (parts >= 0.5).float()


def paste_masks(masks: Tensor, boxes: Tensor, shape: Shape) -> Tensor:
    """Probabilities (n, M, M) within boxes (n, 4) as probabilities (n, H, W) of the image, 0 outside."""
    height, width = shape
    x0, y0, x1, y1 = boxes[:, :, None].unbind(1)  # (n, 1) each
    y = (torch.arange(height, device=boxes.device) + 0.5 - y0) / (y1 - y0) * 2 - 1  # (n, H) from -1 to 1 in the box
    x = (torch.arange(width, device=boxes.device) + 0.5 - x0) / (x1 - x0) * 2 - 1  # (n, W)
    grid = torch.stack([x[:, None].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)], 3)  # (n, H, W, 2)
    return F.grid_sample(masks[:, None], grid.to(masks.dtype), align_corners=False)[:, 0]
