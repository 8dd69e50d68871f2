"""Parts of detectors against torchvision's or a few lines of our own."""

from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from torch import Tensor
from torchvision.models.detection import FCOS, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import roi_align

from tests.support.detection_batches import images, targets
from vitreous.heads.boxes import Anchors, GroundTruth, cell_boxes, ground_truths, ignored_boxes, level_cells
from vitreous.heads.detect import build_detector
from vitreous.heads.regions import RegionAlign, mask_targets

SHAPE = (64, 96)
TWO = [(8.0, 6.0, 40.0, 50.0), (50.0, 20.0, 90.0, 60.0)]


def maps(*strides: int) -> list[Tensor]:
    return [torch.zeros(1, 1, -(-SHAPE[0] // stride), -(-SHAPE[1] // stride)) for stride in strides]


def truth(boxes: Any, crowds: Any = ()) -> GroundTruth:
    labels = torch.arange(len(boxes)) % 3
    return GroundTruth(torch.tensor(boxes), labels, torch.tensor(crowds).reshape(-1, 4), None, SHAPE)


def test_anchors_are_torchvisions_where_it_does_not_round() -> None:
    strides, sizes, ratios = (4, 8, 16), ((16, 64), (32, 128), (64, 256)), (0.25, 1.0, 4.0)
    features = maps(*strides)
    expected = AnchorGenerator(sizes, (ratios,) * 3)(ImageList(torch.zeros(1, 3, *SHAPE), [SHAPE]), features)[0]
    ours = Anchors(strides, level_cells(sizes, ratios, strides, ())).levels(features)
    torch.testing.assert_close(torch.cat(ours), expected)


def test_anchors_keep_their_stride_where_it_does_not_divide_the_image() -> None:
    anchors = Anchors((64,), [cell_boxes([8], [1.0])], offset=0.5).levels([torch.zeros(1, 1, 2, 3)])[0]
    assert anchors[:3].tolist() == [[28, 28, 36, 36], [92, 28, 100, 36], [156, 28, 164, 36]]
    even = Anchors((32, 64), [cell_boxes([8], [1.0])] * 2, offset=0.5, even=True)
    spread = even.levels([torch.zeros(1, 1, 5, 5), torch.zeros(1, 1, 3, 3)])[1]
    centre = (spread[:3, 0] + spread[:3, 2]) / 2
    torch.testing.assert_close(centre, torch.tensor([160 / 6, 80.0, 160 * 5 / 6]))


def test_what_is_left_out() -> None:
    crowd = [[0.0, 0.0, 20.0, 20.0]]
    boxes = torch.tensor(
        [
            [0.0, 0, 10, 10],
            [0, 0, 39, 20],
            [0, 0, 41, 20],
            [30, 30, 40, 40],
            [90, 0, 103, 8],
            [90, 0, 101, 8],
            [5, 5, 5, 5],
        ]
    )
    assert ignored_boxes(boxes, truth([], crowd)).tolist() == [True, True, False, False, True, False, False]
    assert ignored_boxes(boxes, truth([])).tolist() == [False] * 4 + [True, False, False]


def test_annotations_of_a_batch() -> None:
    batch = targets([*TWO, (5, 5, 5, 9), (0, 0, 90, 60)], [])
    batch["crowd"][0][3] = True
    first, second = ground_truths(batch, [SHAPE, SHAPE], torch.device("cpu"))
    assert first.boxes.tolist() == [list(row) for row in TWO]
    assert first.labels.tolist() == [0, 1]
    assert first.crowds.tolist() == [[0, 0, 90, 60]]
    assert first.masks is not None
    assert first.masks.flatten(1).sum(1).tolist() == [32 * 44, 40 * 40]
    assert len(second.boxes) == len(second.labels) == len(second.crowds) == 0


def small(head: str) -> Any:
    torch.manual_seed(0)
    backbone = timm.create_model("test_resnet", features_only=True)
    return build_detector(backbone, head, 3, channels=16, norm="gn", convs=1)


def test_retinanet_learns_what_torchvisions_does() -> None:
    model = small("retinanet")
    features = list(model.backbone(images(1)).values())
    ours = model.losses(features, [SHAPE], ground_truths(targets(TWO), [SHAPE], torch.device("cpu")))
    head = SimpleNamespace(
        compute_loss=lambda objects, outputs, anchors, matched: {
            "class": model.classifier.compute_loss(objects, outputs, matched),
            "box": model.regressor.compute_loss(objects, outputs, anchors, matched),
        }
    )
    theirs = RetinaNet.compute_loss(
        SimpleNamespace(proposal_matcher=model.matcher, head=head),  # type: ignore[arg-type]
        [{"boxes": torch.tensor(TWO), "labels": torch.tensor([0, 1])}],
        {"cls_logits": model.classifier(features), "bbox_regression": model.regressor(features)},  # type: ignore[arg-type]
        [torch.cat(model.anchors.levels(features))],
    )
    torch.testing.assert_close(ours["box"], theirs["box"])
    torch.testing.assert_close(ours["class"], theirs["class"])


@pytest.mark.parametrize("seed", range(3))
def test_fcos_matches_what_torchvisions_does(seed: int) -> None:
    model = small("fcos")
    corner = torch.rand(6, 2, generator=torch.Generator().manual_seed(seed)) * 60
    boxes = torch.cat(
        [corner, corner + 3 + torch.rand(6, 2, generator=torch.Generator().manual_seed(seed + 9)) * 90], 1
    )
    levels = model.anchors.levels(maps(*model.backbone.strides))
    seen: list[list[Tensor]] = []
    FCOS.compute_loss(
        SimpleNamespace(  # type: ignore[arg-type]
            center_sampling_radius=1.5,
            head=SimpleNamespace(compute_loss=lambda *given: seen.append(given[3])),
        ),
        [{"boxes": boxes}],
        {},
        [torch.cat(levels)],
        [len(level) for level in levels],
    )
    ours = model.match(levels, boxes)
    assert (ours >= 0).sum() > 3
    assert torch.equal(ours, seen[0][0])


def test_regions_come_from_the_level_of_their_size_in_their_order() -> None:
    features = [
        torch.randn(2, 3, 64, 96),
        torch.randn(2, 3, 32, 48),
        torch.randn(2, 3, 16, 24),
        torch.randn(2, 3, 8, 12),
    ]
    sides = (300.0, 10.0, 120.0, 230.0, 60.0)
    boxes = [torch.tensor([[4.0, 4.0, 4 + side, 4 + side] for side in sides]), torch.tensor([[9.0, 9.0, 200.0, 30.0]])]
    level = [2, 0, 1, 2, 0, 0]  # 224 pixels and more: stride 16
    pooled = RegionAlign((4, 8, 16, 32), 7, 2)(features, boxes)
    for place, box in enumerate(torch.cat(boxes)):
        owner = torch.tensor([[float(place == 5), *box.tolist()]])
        expected = roi_align(features[level[place]], owner, 7, 0.25 / 2 ** level[place], 2, aligned=True)
        torch.testing.assert_close(pooled[place : place + 1], expected)


def test_mask_targets_are_the_mask_within_the_box() -> None:
    masks = torch.zeros(1, *SHAPE, dtype=torch.uint8)
    masks[0, 10:30, 20:40] = 1
    objects = GroundTruth(torch.tensor([[20.0, 10.0, 40.0, 30.0]]), torch.tensor([0]), torch.zeros(0, 4), masks, SHAPE)
    boxes = torch.tensor([[20.0, 10.0, 40.0, 30.0], [10.0, 10.0, 30.0, 30.0]])
    found = mask_targets(boxes, torch.tensor([0, 0]), objects, 28)
    assert (found[0] == 1).all()
    assert (found[1, :, :14] == 0).all()
    assert (found[1, :, 14:] == 1).all()
