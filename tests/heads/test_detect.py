"""All detectors: they learn, survive poor targets, ignore crowds and padding, and answer alike alone and in a batch."""

from typing import Any

import pytest
import timm
import torch

from tests.support.detection_batches import HEIGHT, WIDTH, images, targets
from tests.support.families import awake
from vitreous.errors import InputError
from vitreous.heads.boxes import Detector
from vitreous.heads.detect import DETECTORS, build_detector, detector_arguments, paste_masks
from vitreous.heads.regions import RegionAlign

NAMES = ("maskrcnn", "fasterrcnn", "retinanet", "fcos", "ssd", "ssdlite", "atss", "sparsercnn")
REGIONS, DENSE, DEFAULT_BOXES = (
    dict(hidden=32, convs=1, samples=32, proposals=40),
    dict(convs=1),
    dict(size=96, channels=32),
)
SMALL: dict[str, dict[str, Any]] = {
    "maskrcnn": REGIONS,
    "fasterrcnn": REGIONS,
    "retinanet": DENSE,
    "fcos": DENSE,
    "atss": DENSE,
    "ssd": DEFAULT_BOXES,
    "ssdlite": DEFAULT_BOXES,
    "sparsercnn": dict(proposals=12, rounds=2, inner=8, hidden=32),
}
TWO = [(8.0, 6.0, 40.0, 50.0), (50.0, 20.0, 90.0, 60.0)]
ONE = [(30.0, 12.0, 62.0, 44.0)]


def detector(head: str, **changes: Any) -> Detector:
    torch.manual_seed(0)
    backbone = timm.create_model("test_resnet", features_only=True)
    return build_detector(backbone, head, 3, **dict(channels=16, norm="gn") | SMALL[head] | changes)


def total(losses: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(losses.values())).sum()


def test_the_list_is_complete() -> None:
    assert DETECTORS == NAMES


@pytest.mark.parametrize("head", DETECTORS)
def test_losses_fall_and_every_parameter_learns(head: str) -> None:
    model, batch, objects = detector(head), images(2), targets(TWO, ONE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    history = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = total(model(batch, objects))
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        history.append(loss.item())
    assert sum(history[-3:]) < 0.8 * sum(history[:3]), history


POOR = {
    "no objects": targets([], []),
    "one picture without": targets(TWO, []),
    "only crowds": targets(TWO, ONE, crowd=(True, True)),
    "a crowd over everything": targets([(0, 0, WIDTH, HEIGHT)], [(0, 0, WIDTH, HEIGHT)], crowd=(True, True)),
    "boxes without area": targets([(20, 20, 20, 40), (30, 30, 10, 40)], [(5, 5, 5, 5)]),
    "outside of the picture": targets([(200, 200, 220, 230), (-40, -30, -5, -2)], [(90, 60, 140, 110)]),
    "one pixel": targets([(20, 20, 21, 21)], [(0.2, 0.2, 0.4, 0.4)]),
    "mixed orientations": targets(TWO, [(4, 4, 30, 60)], sizes=[(48, 96), (64, 40)]),
    "no crowd given": {key: value for key, value in targets(TWO, ONE).items() if key != "crowd"},
}


@pytest.mark.parametrize("head", DETECTORS)
@pytest.mark.parametrize("case", POOR)
def test_poor_targets_give_finite_losses_and_gradients(head: str, case: str) -> None:
    model = detector(head)
    losses = model(images(2), POOR[case])
    total(losses).backward()
    assert all(torch.isfinite(loss) for loss in losses.values())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("head", DETECTORS)
def test_losses_in_evaluation_too(head: str) -> None:
    model = detector(head).eval()
    with torch.no_grad():
        assert model(images(2), targets(TWO, ONE)).keys() == model.train()(images(2), targets(TWO, ONE)).keys()


@pytest.mark.parametrize("head", DETECTORS)
def test_alone_and_in_a_batch_the_answers_are_the_same(head: str) -> None:
    model = awake(detector(head, score_threshold=0.0, detections=20)).eval()  # else scores are nearly the same
    batch, sizes = images(3), torch.tensor([(64, 96), (50, 96), (64, 70)])
    with torch.no_grad():
        together = model(batch, sizes=sizes)
        alone = [model(batch[i : i + 1], sizes=sizes[i : i + 1])[0] for i in range(3)]
    assert any(len(found["boxes"]) for found in together)
    for one, other in zip(together, alone, strict=True):
        assert one.keys() == other.keys()
        assert len(one["scores"]) == len(other["scores"])
        # Sums are taken in another order in a batch of another size.
        torch.testing.assert_close(one["scores"], other["scores"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(one["boxes"], other["boxes"], rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("head", DETECTORS)
def test_answers_are_well_formed(head: str) -> None:
    model = detector(head, score_threshold=0.0, detections=20).eval()
    sizes = torch.tensor([(64, 96), (40, 70)])
    with torch.no_grad():
        found = model(images(2), sizes=sizes)
    for result, (height, width) in zip(found, sizes.tolist(), strict=True):
        boxes, scores = result["boxes"], result["scores"]
        assert 0 < len(boxes) <= 20
        assert (boxes >= 0).all()
        assert (boxes <= torch.tensor([width, height, width, height])).all()
        assert (boxes[:, 2:] > boxes[:, :2]).all()
        assert (scores[:-1] >= scores[1:]).all()
        assert ((scores >= 0) & (scores <= 1)).all()
        assert set(result["labels"].tolist()) <= {0, 1, 2}
        if head == "maskrcnn":
            assert result["masks"].shape == (len(boxes), 28, 28)
            assert ((result["masks"] >= 0) & (result["masks"] <= 1)).all()


@pytest.mark.parametrize("head", DETECTORS)
def test_padding_does_not_matter(head: str) -> None:
    """Neither its colour, nor for the losses of anchors on it."""
    model = detector(head).eval()
    sizes, batch = torch.tensor([(40, 64)]), images(1)
    other = batch.clone()
    other[:, :, 40:] = 7.0
    other[:, :, :, 64:] = -7.0
    with torch.no_grad():
        for one, two in zip(model(batch, sizes=sizes), model(other, sizes=sizes), strict=True):
            for name, value in one.items():
                torch.testing.assert_close(value, two[name], rtol=0, atol=0)


@pytest.mark.parametrize("head", ["retinanet", "fcos", "atss"])
def test_what_is_said_within_a_crowd_is_not_a_mistake(head: str) -> None:
    """With no other object, answers in the crowd have no gradient, and those outside have."""
    model = detector(head, **dict(anchor_sizes=(16, 32, 64, 96, 96)) if head == "atss" else {})
    seen: list[torch.Tensor] = []

    def keep(_module: torch.nn.Module, _inputs: Any, logits: torch.Tensor) -> None:
        logits.retain_grad()
        seen.append(logits)

    model.classifier.register_forward_hook(keep)  # type: ignore[union-attr]
    model(images(1), targets([(0, 0, 48, HEIGHT)], crowd=(True,)))["class"].backward()
    gradient = seen[0].grad
    assert gradient is not None
    with torch.no_grad():
        anchors = torch.cat(model.anchors.levels(list(model.backbone(images(1)).values())))  # type: ignore[union-attr,operator]
    width = anchors[:, 2] - anchors[:, 0]
    inside = (anchors[:, 2].clamp(max=48) - anchors[:, 0].clamp(min=0)) / width >= 1
    inside &= (anchors[:, 1] >= 0) & (anchors[:, 3] <= HEIGHT)
    outside = (anchors[:, 0] >= 50) & (anchors[:, :2] + anchors[:, 2:] < 2 * torch.tensor([WIDTH, HEIGHT])).all(1)
    assert inside.any()
    assert outside.any()
    assert (gradient[0, inside] == 0).all()
    assert (gradient[0, outside] != 0).any(1).all()


@pytest.mark.parametrize("head", DETECTORS)
def test_papers_defaults_build(head: str) -> None:
    with torch.device("meta"):
        model = build_detector("paca_tiny", head, 80).eval()
        model.raw(torch.empty(1, 3, 320, 320))


def test_anchors_can_be_fitted() -> None:
    sizes = ((10, 14), (20, 28), (40, 56), (60, 80), (90, 100))
    model = detector("retinanet", anchor_sizes=sizes, anchor_ratios=(1.0,))
    assert model.anchors.counts == [2] * 5  # type: ignore[union-attr]
    assert detector("fasterrcnn", anchor_sizes=(8, 16, 32, 64, 96)).proposals.anchors.counts == [3] * 5  # type: ignore[union-attr]
    assert len(detector("ssdlite", anchor_sizes=(10, 20, 30, 50, 70, 90)).anchors.cells) == 6  # type: ignore[arg-type,union-attr]


def test_masks_are_pasted_where_their_boxes_are() -> None:
    masks = torch.ones(2, 28, 28)
    masks[1, :, 14:] = 0.0  # the left half alone
    boxes = torch.tensor([[2.0, 3.0, 10.0, 7.0], [4.0, 0.0, 12.0, 8.0]])
    pasted = paste_masks(masks, boxes, (10, 16)) >= 0.5
    expected = torch.zeros(2, 10, 16, dtype=torch.bool)
    expected[0, 3:7, 2:10] = True
    expected[1, 0:8, 4:8] = True
    assert torch.equal(pasted, expected)
    assert paste_masks(torch.zeros(0, 28, 28), torch.zeros(0, 4), (10, 16)).shape == (0, 10, 16)


def test_mixed_precision_leaves_regions_in_their_place() -> None:
    """bfloat16 has only every eighth pixel beyond 1024; the maps alone may be rounded, to 8 bits."""
    ramp = torch.linspace(-1, 1, 16).expand(1, 1, 8, 16)
    maps = torch.cat([torch.zeros(1, 1, 8, 250), ramp], 3)  # a slope of 2 / 15 in cell, from pixel 1000 on
    align, boxes = RegionAlign((4,), 7, 2), [torch.tensor([[1013.0, 3.0, 1043.0, 29.0]])]
    with torch.autocast("cpu", torch.bfloat16):
        rounded = align([maps.bfloat16()], boxes).float()
    assert (rounded - align([maps], boxes)).abs().max() < 2 * 2**-8


def test_bad_arguments() -> None:
    backbone = timm.create_model("test_resnet", features_only=True)
    for head, classes, arguments, says in (
        ("yolo", 3, {}, "unknown detector 'yolo'; accepted: maskrcnn, fasterrcnn"),
        ("fcos", 0, {}, "classes=0 given"),
        ("fcos", 3, dict(conv=2), "unknown argument 'conv' of the head 'fcos'; nearest: convs"),
        ("fcos", 3, dict(channels=0), "channels=0 given"),
        ("fcos", 3, dict(norm="ln"), "norm='ln' given; accepted: 'bn', 'gn', None"),
        ("retinanet", 3, dict(convs=9), "convs=9 given"),
        ("retinanet", 3, dict(anchor_sizes=(8, 16)), "for each of the levels of strides 8, 16, 32, 64, 128"),
        ("retinanet", 3, dict(anchor_ratios=(0.0,)), "anchor_ratios=(0.0,) given"),
        ("ssd", 3, dict(anchor_sizes=((8, 9),) * 6), "one size for each level"),
        ("ssd", 3, dict(levels=(5,)), "this model has maps of strides"),
        ("sparsercnn", 3, dict(channels=20), "a multiple of 8"),
    ):
        with pytest.raises(InputError) as reason:
            build_detector(backbone, head, classes, **arguments)
        assert says in str(reason.value)
    assert detector_arguments("fcos")["channels"] == 256


def test_bad_batches() -> None:
    with pytest.raises(InputError, match="given for 1 images padded to 64x96 pixels"):
        detector("fcos")(images(1), sizes=torch.tensor([(65, 96)]))
    without = {key: value for key, value in targets(TWO).items() if key != "masks"}
    with pytest.raises(InputError, match="the targets have no masks"):
        detector("maskrcnn")(images(1), without)
    with pytest.raises(InputError, match="one image and BatchNorm"):
        detector("ssdlite", norm=None)(images(1), targets(TWO))
