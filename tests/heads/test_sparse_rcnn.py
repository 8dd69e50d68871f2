import itertools
import re
import sys

import pytest
import torch

from vitreous.errors import InputError, to_install_extra
from vitreous.heads.boxes import GroundTruth
from vitreous.heads.sparse_rcnn import DynamicInteraction, image_losses, least_cost_match

SHAPE = (64, 96)


def truth(count: int) -> GroundTruth:
    corner = torch.rand(count, 2, generator=torch.Generator().manual_seed(4)) * 40
    boxes = torch.cat([corner, corner + 20], 1)
    return GroundTruth(boxes, torch.arange(count) % 3, torch.zeros(0, 4), None, SHAPE)


def answers(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    corner = torch.rand(count, 2, generator=generator) * 40
    return torch.randn(count, 3, generator=generator), torch.cat([corner, corner + 25], 1)


def test_no_other_matching_has_a_smaller_loss() -> None:
    """The cost of a match is what it adds to the loss: focal loss as an object instead of background, L1 and GIoU."""
    (logits, boxes), objects = answers(5), truth(3)
    rows, numbers = least_cost_match(logits, boxes, objects)
    assert sorted(numbers.tolist()) == [0, 1, 2]
    assert len(set(rows.tolist())) == 3

    def loss(chosen: tuple[int, ...]) -> float:
        order = torch.tensor(chosen)
        target = torch.zeros_like(logits)
        target[order, objects.labels] = 1
        from torchvision.ops import generalized_box_iou_loss, sigmoid_focal_loss

        scale = torch.tensor([96.0, 64, 96, 64])
        focal = sigmoid_focal_loss(logits, target, reduction="sum")
        overlap = generalized_box_iou_loss(boxes[order], objects.boxes, reduction="sum")
        return float(2 * focal + 5 * ((boxes[order] - objects.boxes) / scale).abs().sum() + 2 * overlap)

    by_number = [rows[numbers == i].item() for i in range(3)]
    best = min(itertools.permutations(range(5), 3), key=loss)
    assert loss(tuple(map(int, by_number))) == pytest.approx(loss(best), rel=1e-5)


def test_more_objects_than_proposals_and_none() -> None:
    logits, boxes = answers(2)
    rows, numbers = least_cost_match(logits, boxes, truth(3))
    assert len(rows) == len(numbers) == 2
    losses = image_losses(logits, boxes, truth(0))
    assert losses["box"] == losses["overlap"] == 0
    assert losses["class"] > 0


def test_interaction_is_two_layers_made_by_the_proposal() -> None:
    torch.manual_seed(0)
    layer = DynamicInteraction(8, 4)
    proposals, regions = torch.randn(3, 8), torch.randn(3, 49, 8)
    whole = layer(proposals, regions)
    alone = torch.cat([layer(proposals[i : i + 1], regions[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(whole, alone)
    swapped = layer(proposals.flip(0), regions)
    assert not torch.allclose(whole, swapped)


def test_without_scipy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(InputError, match=re.escape(to_install_extra("det"))):
        least_cost_match(*answers(2), truth(1))
