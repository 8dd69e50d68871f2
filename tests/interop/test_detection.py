"""torchvision's detectors on a pyramid of every family."""

import pytest
import torch
from torchvision.models.detection import FCOS, FasterRCNN, MaskRCNN, RetinaNet

import vitreous
from tests.support.families import ONE_OF_EACH, assert_every_parameter_has_a_gradient, short

SIZES = ((70, 99), (61, 83))  # neither a multiple of 32 nor alike
SMALL = dict(min_size=64, max_size=96)
DETECTORS = {  # detector -> the pyramid it takes, and what makes it show what it finds, and quickly
    FasterRCNN: (dict(extra="pool"), dict(box_score_thresh=0.0)),
    RetinaNet: (dict(extra="p6p7"), dict(score_thresh=0.0)),
    MaskRCNN: (
        dict(extra="pool"),
        dict(box_score_thresh=0.0, box_detections_per_img=3, box_batch_size_per_image=16),
    ),
    FCOS: (dict(extra="p6p7"), dict(score_thresh=0.0)),
}
EVERY_FAMILY = [(name, detector) for name in ONE_OF_EACH for detector in (FasterRCNN, RetinaNet)]
ONE_FAMILY = [("paca_b0", MaskRCNN), ("paca_b0", FCOS)]


def examples() -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    boxes = (torch.tensor([[5.0, 6, 40, 50], [20, 10, 60, 44]]), torch.tensor([[15.0, 6, 50, 50]]))
    targets = [
        dict(boxes=box, labels=torch.arange(1, len(box) + 1), masks=torch.ones(len(box), *size, dtype=torch.uint8))
        for box, size in zip(boxes, SIZES, strict=True)
    ]
    return [torch.rand(3, *size) for size in SIZES], targets


@pytest.mark.parametrize(("name", "detector"), EVERY_FAMILY + ONE_FAMILY)
def test_a_training_step_and_boxes_within_the_image(name: str, detector: type) -> None:
    levels, shown = DETECTORS[detector]
    backbone = vitreous.pyramid(name, channels=32, **levels, **short(name))
    model = detector(backbone, num_classes=3, **SMALL, **shown).train()
    images, targets = examples()
    losses = model(images, targets)
    assert all(torch.isfinite(loss) for loss in losses.values())
    sum(losses.values()).backward()
    assert_every_parameter_has_a_gradient(model)
    assert next(backbone.body.parameters()).grad.abs().sum() > 0, "the first layer of the trunk learns"
    torch.optim.SGD(model.parameters(), lr=1e-3).step()

    model.eval()
    with torch.no_grad():
        found = model(images)
    for (height, width), result in zip(SIZES, found, strict=True):
        boxes = result["boxes"]
        assert len(boxes) > 0
        assert (boxes >= 0).all()
        assert (boxes <= torch.tensor([width, height, width, height])).all()
        assert len(result["scores"]) == len(boxes)
