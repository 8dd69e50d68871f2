import pytest
import torch
from torchvision.ops import box_iou

from vitreous.heads.boxes import Anchors, cell_boxes
from vitreous.heads.one_stage import CANDIDATES_PER_LEVEL, adaptive_match


def levels(size: int) -> list[torch.Tensor]:
    strides = (8, 16, 32)
    anchors = Anchors(strides, [cell_boxes([8 * stride], [1.0]) for stride in strides])
    return anchors.levels([torch.zeros(1, 1, size // stride, size // stride) for stride in strides])


def one_by_one(anchors: list[torch.Tensor], boxes: torch.Tensor) -> list[int]:
    """Algorithm 1 of the paper, object by object."""
    together = torch.cat(anchors)
    centre = (together[:, :2] + together[:, 2:]) / 2
    owner, overlap_of_owner = [-1] * len(together), [-1.0] * len(together)
    for number, box in enumerate(boxes):
        candidates, start = [], 0
        for level in anchors:
            distance = (centre[start : start + len(level)] - (box[:2] + box[2:]) / 2).norm(dim=1)
            candidates += [start + i for i in distance.argsort(stable=True)[:CANDIDATES_PER_LEVEL].tolist()]
            start += len(level)
        overlaps = box_iou(together[candidates], box[None])[:, 0]
        threshold = overlaps.mean() + overlaps.std()
        for i, overlap in zip(candidates, overlaps, strict=True):
            x, y = centre[i]
            inside = box[0] < x < box[2] and box[1] < y < box[3]
            if overlap >= threshold and inside and overlap > overlap_of_owner[i]:
                owner[i], overlap_of_owner[i] = number, float(overlap)
    return owner


@pytest.mark.parametrize("seed", range(4))
def test_assignment_is_the_papers(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(5, 2, generator=generator) * 150
    boxes = torch.cat([corner, corner + 15 + torch.rand(5, 2, generator=generator) * 120], 1)
    anchors = levels(256)
    matched = adaptive_match(anchors, boxes)
    assert (matched >= 0).any()
    assert matched.tolist() == one_by_one(anchors, boxes)


def test_a_level_with_fewer_anchors_than_candidates() -> None:
    anchors = levels(32)
    assert len(anchors[2]) == 1
    assert adaptive_match(anchors, torch.tensor([[2.0, 2.0, 30.0, 30.0]])).shape == (16 + 4 + 1,)
    assert adaptive_match(anchors[2:], torch.tensor([[-20.0, -20.0, 30.0, 30.0]])).tolist() == [0]


def test_large_coordinates_lose_nothing() -> None:
    """Distances from squares of coordinates would be wrong by several pixels here; 2^14 itself takes no digit away."""
    anchors, boxes = levels(256), torch.tensor([[20.25, 30.5, 60.75, 90.0], [100.5, 110.25, 180.0, 140.75]])
    far = [level + 2**14 for level in anchors]
    assert torch.equal(adaptive_match(far, boxes + 2**14), adaptive_match(anchors, boxes))
