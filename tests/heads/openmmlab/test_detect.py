"""Checkpoints with mmdetection's names: the converted model says the same, and no key is lost."""

import re
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.families import awake
from tests.support.openmmlab import Neck
from tests.support.original_weights import paca_original, xcit_original
from vitreous.errors import InputError
from vitreous.heads.boxes import Detector
from vitreous.heads.detect import build_detector
from vitreous.heads.openmmlab.conversion import Conversion
from vitreous.heads.openmmlab.detect import describe_detector, load_detector
from vitreous.heads.openmmlab.segment import Release
from vitreous.models.paca import PaCa
from vitreous.models.xcit import XCiT

DIMS, CLASSES, WIDTH, HIDDEN = (8, 16, 24, 32), 5, 16, 12
PACA = dict(dims=DIMS, depths=(1, 1, 2, 1), heads=(1, 2, 3, 4), clusters=(6, 7, 6, 0))
IMAGES = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))


def random_layers(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """For every name a weight of the shape and a bias; a name that ends with "*" has no bias."""
    generator = torch.Generator().manual_seed(3)
    state = {}
    for name, shape in shapes.items():
        state[f"{name.removesuffix('*')}.weight"] = torch.randn(shape, generator=generator) * 0.1
        if not name.endswith("*"):
            outputs = shape[1] if name.endswith("upsample") else shape[0]
            state[f"{name}.bias"] = torch.randn(outputs, generator=generator) * 0.1
    return state


def trunk() -> PaCa:
    torch.manual_seed(1)
    return awake(PaCa(**PACA, num_classes=0)).eval()


def with_trunk(parts: dict[str, Tensor], levels: tuple[int, ...] = DIMS) -> dict[str, Tensor]:
    state = {f"backbone.{key}": value for key, value in paca_original(trunk().state_dict()).items()}
    torch.manual_seed(2)
    return state | {f"neck.{key}": value for key, value in awake(Neck(levels, WIDTH)).state_dict().items()} | parts


def mask_rcnn(*, codes: int = 4 * CLASSES, logits: int = CLASSES) -> dict[str, Tensor]:
    return random_layers(
        {
            "rpn_head.rpn_conv": (WIDTH, WIDTH, 3, 3),
            "rpn_head.rpn_cls": (3, WIDTH, 1, 1),
            "rpn_head.rpn_reg": (12, WIDTH, 1, 1),
            "roi_head.bbox_head.fc_cls": (CLASSES + 1, HIDDEN),
            "roi_head.bbox_head.fc_reg": (codes, HIDDEN),
            "roi_head.bbox_head.shared_fcs.0": (HIDDEN, WIDTH * 49),
            "roi_head.bbox_head.shared_fcs.1": (HIDDEN, HIDDEN),
            "roi_head.mask_head.convs.0.conv": (WIDTH, WIDTH, 3, 3),
            "roi_head.mask_head.convs.1.conv": (WIDTH, WIDTH, 3, 3),
            "roi_head.mask_head.upsample": (WIDTH, WIDTH, 2, 2),
            "roi_head.mask_head.conv_logits": (logits, WIDTH, 1, 1),
        }
    )


def built(release: Release) -> Any:
    backbone = timm.create_model("paca_tiny", features_only=True, **{**PACA, "clusters": release.clusters})
    return build_detector(backbone, release.head, release.classes, **release.head_args).eval()


def assert_accounted(report: Conversion, model: Detector) -> None:
    assert not report.having("wrong shape", "missing", "unexpected", "fresh"), str(report)
    taken = [decision.ours for decision in report.having("loaded")]
    assert sorted(taken) == sorted(model.state_dict())  # type: ignore[type-var]


def reasons(report: Conversion) -> dict[str, str]:
    return {str(decision.theirs): decision.reason for decision in report.decisions if decision.reason}


def test_mask_rcnn_says_the_same() -> None:
    state = with_trunk(mask_rcnn())
    release = describe_detector(state)
    arguments = dict(channels=WIDTH, hidden=HIDDEN, convs=2, align_samples=0)
    assert release == Release("maskrcnn", CLASSES, arguments, (6, 7, 6, 0))
    model = built(release)
    report = load_detector(model, state)
    assert_accounted(report, model)
    assert {decision.theirs for decision in report.decisions} == set(state)
    assert reasons(report) == {
        f"roi_head.bbox_head.fc_cls.{kind}": "background moved from the last place to the first"
        for kind in ("weight", "bias")
    }
    x = torch.randn(4, HIDDEN)
    theirs = F.softmax(F.linear(x, *(state[f"roi_head.bbox_head.fc_cls.{k}"] for k in ("weight", "bias"))), 1)
    codes = F.linear(x, *(state[f"roi_head.bbox_head.fc_reg.{k}"] for k in ("weight", "bias")))
    neck = Neck(DIMS, WIDTH)
    neck.load_state_dict({key.removeprefix("neck."): value for key, value in state.items() if key.startswith("neck.")})
    with torch.no_grad():
        logits, ours = model.box_predictor(x)
        levels = list(model.backbone(IMAGES).values())
        expected = neck(trunk().features(IMAGES).maps)
        torch.testing.assert_close(logits.softmax(1)[:, 1:], theirs[:, :-1])  # classes in their order
        torch.testing.assert_close(ours, codes.view(4, CLASSES, 4))
        for level, other in zip(levels[:4], expected, strict=True):
            torch.testing.assert_close(level, other, rtol=1e-4, atol=1e-4 * other.abs().max().item())
        objects, boxes = model.proposals(levels)
        hidden = F.relu(F.conv2d(levels[2], *pair(state, "rpn_head.rpn_conv"), padding=1))
        scores = F.conv2d(hidden, *pair(state, "rpn_head.rpn_cls")).permute(0, 2, 3, 1).reshape(1, -1)
        offsets = F.conv2d(hidden, *pair(state, "rpn_head.rpn_reg")).permute(0, 2, 3, 1).reshape(1, -1, 4)
        torch.testing.assert_close(objects[2], scores)
        torch.testing.assert_close(boxes[2], offsets)


def pair(state: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    return state[f"{name}.weight"], state[f"{name}.bias"]


def test_anchors_are_in_the_toolbox_order() -> None:
    """Ratios 0.5, 1, 2 (height by width) at every cell, row by row, around the cells' first corners."""
    model = built(describe_detector(with_trunk(mask_rcnn())))
    anchors = model.proposals.anchors.levels([torch.zeros(1, 1, 2, 3)] * 5)[1]  # stride 8, size 64
    side = 64 * 2**0.5
    first = [[-side / 2, -side / 4, side / 2, side / 4], [-32, -32, 32, 32], [-side / 4, -side / 2, side / 4, side / 2]]
    torch.testing.assert_close(anchors[:3], torch.tensor(first))
    torch.testing.assert_close(anchors[4], torch.tensor([-24.0, -32.0, 40.0, 32.0]))  # the next column
    torch.testing.assert_close(anchors[10], torch.tensor([-32.0, -24.0, 32.0, 40.0]))  # the next row


def test_codes_shared_by_all_classes_are_repeated() -> None:
    state = with_trunk(mask_rcnn(codes=4))
    model = built(describe_detector(state))
    report = load_detector(model, state)
    assert_accounted(report, model)
    assert reasons(report)["roi_head.bbox_head.fc_reg.bias"] == "shared by all classes: repeated for each"
    with torch.no_grad():
        _, codes = model.box_predictor(torch.randn(2, HIDDEN))
    assert (codes == codes[:, :1]).all()


def test_version_1_had_the_background_first_everywhere() -> None:
    state = with_trunk(mask_rcnn(codes=4 * (CLASSES + 1), logits=CLASSES + 1))
    state = {key.replace("roi_head.", ""): value for key, value in state.items()}
    model = built(describe_detector(state))
    report = load_detector(model, state)
    assert_accounted(report, model)
    own = model.state_dict()
    assert torch.equal(own["box_predictor.cls_score.bias"], state["bbox_head.fc_cls.bias"])
    assert torch.equal(own["box_predictor.bbox_pred.bias"], state["bbox_head.fc_reg.bias"][4:])
    assert torch.equal(own["mask_predictor.mask_fcn_logits.bias"], state["mask_head.conv_logits.bias"][1:])
    assert reasons(report)["bbox_head.fc_cls.weight"] == "background first there too"


def test_retinanet() -> None:
    towers = {f"bbox_head.{kind}_convs.{i}.conv": (WIDTH, WIDTH, 3, 3) for kind in ("cls", "reg") for i in range(2)}
    layers = towers | {
        "bbox_head.retina_cls": (9 * CLASSES, WIDTH, 3, 3),
        "bbox_head.retina_reg": (36, WIDTH, 3, 3),
        "neck.fpn_convs.3.conv": (WIDTH, DIMS[-1], 3, 3),
        "neck.fpn_convs.4.conv": (WIDTH, WIDTH, 3, 3),
    }
    state = with_trunk(random_layers(layers), DIMS[1:])
    release = describe_detector(state)
    assert release == Release("retinanet", CLASSES, dict(channels=WIDTH, convs=2), (6, 7, 6, 0))
    model = built(release)
    assert_accounted(load_detector(model, state), model)
    with torch.no_grad():
        maps = trunk().features(IMAGES).maps
        p6 = F.conv2d(maps[-1], *pair(state, "neck.fpn_convs.3.conv"), stride=2, padding=1)
        levels = list(model.backbone(IMAGES).values())
        torch.testing.assert_close(levels[3], p6, rtol=1e-4, atol=1e-4 * p6.abs().max().item())
        x = levels[1]
        for i in range(2):
            x = F.relu(F.conv2d(x, *pair(state, f"bbox_head.cls_convs.{i}.conv"), padding=1))
        expected = F.conv2d(x, *pair(state, "bbox_head.retina_cls"), padding=1).permute(0, 2, 3, 1)
        torch.testing.assert_close(model.classifier([levels[1]]), expected.reshape(1, -1, CLASSES))


def test_atss() -> None:
    towers = {f"bbox_head.{kind}_convs.{i}.conv*": (WIDTH, WIDTH, 3, 3) for kind in ("cls", "reg") for i in range(2)}
    norms = {f"bbox_head.{kind}_convs.{i}.gn": (WIDTH,) for kind in ("cls", "reg") for i in range(2)}
    layers = {
        **towers,
        **norms,
        "bbox_head.atss_cls": (CLASSES, WIDTH, 3, 3),
        "bbox_head.atss_reg": (4, WIDTH, 3, 3),
        "bbox_head.atss_centerness": (1, WIDTH, 3, 3),
        "neck.fpn_convs.3.conv": (WIDTH, WIDTH, 3, 3),
        "neck.fpn_convs.4.conv": (WIDTH, WIDTH, 3, 3),
    }
    state = with_trunk(random_layers(layers), DIMS[1:])
    state |= {f"bbox_head.scales.{i}.scale": torch.tensor(1.0 + i) for i in range(5)}
    release = describe_detector(state)
    assert release == Release("atss", CLASSES, dict(channels=WIDTH, convs=2), (6, 7, 6, 0))
    model = built(release)
    report = load_detector(model, state)
    assert_accounted(report, model)
    assert model.regressor.scales.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert reasons(report)["bbox_head.cls_convs.0.conv.bias"] == "not there: 0, which changes nothing"
    with torch.no_grad():
        x = torch.randn(1, WIDTH, 4, 6)
        levels = [torch.zeros(1, WIDTH, 1, 1), x, *[torch.zeros(1, WIDTH, 1, 1)] * 3]
        codes, _ = model.regressor(levels)
        for i in range(2):
            x = F.conv2d(x, state[f"bbox_head.reg_convs.{i}.conv.weight"], padding=1)
            x = F.relu(F.group_norm(x, 2, *pair(state, f"bbox_head.reg_convs.{i}.gn")))
        expected = 2.0 * F.conv2d(x, *pair(state, "bbox_head.atss_reg"), padding=1)
        torch.testing.assert_close(codes[:, 1:25], expected.permute(0, 2, 3, 1).reshape(1, -1, 4))


def test_xcit() -> None:
    arguments = dict(dim=16, depth=4, heads=2, ends=(0, 1, 2, 3))
    torch.manual_seed(2)
    backbone = awake(XCiT(**arguments, dense=True)).eval()
    names = xcit_original(awake(XCiT(**arguments, num_classes=0)))
    for key, value in backbone.state_dict().items():
        if match := re.match(r"stages\.(\d)\.rescale\.(.*)", key):
            names[f"fpn{int(match[1]) + 1}.{match[2]}"] = value
    backbone.load_weights(names)
    torch.manual_seed(3)
    neck = {f"neck.{key}": value for key, value in awake(Neck((16,) * 4, WIDTH)).state_dict().items()}
    state = {f"backbone.{key}": value for key, value in names.items()} | neck | mask_rcnn()
    release = describe_detector(state)
    fresh = timm.create_model("xcit_nano_12_p16", features_only=True, **arguments)
    model = build_detector(fresh, release.head, release.classes, **release.head_args).eval()
    assert not load_detector(model, state).having("wrong shape", "missing", "unexpected", "fresh")
    with torch.no_grad():
        for one, other in zip(model.backbone.maps(IMAGES), backbone.features(IMAGES).maps, strict=True):  # type: ignore[operator]
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * other.abs().max().item())


def test_other_classes_start_afresh_and_are_named() -> None:
    state = with_trunk(mask_rcnn())
    model = built(describe_detector(state)._replace(classes=2))
    fresh = [decision.ours for decision in load_detector(model, state).having("fresh")]
    assert fresh == [
        f"{layer}.{kind}"
        for layer in ("box_predictor.cls_score", "box_predictor.bbox_pred", "mask_predictor.mask_fcn_logits")
        for kind in ("weight", "bias")
    ]


def test_what_cannot_be_loaded(tmp_path: Any) -> None:
    state = with_trunk(mask_rcnn())
    model = built(describe_detector(state))
    del state["rpn_head.rpn_cls.bias"]
    torch.save({"state_dict": state}, tmp_path / "mask.pth")
    with pytest.raises(InputError, match=r"mask.pth: .*does not fit this RCNN") as reason:
        load_detector(model, tmp_path / "mask.pth")
    assert "missing: proposals.head.cls_logits.bias (3,)" in str(reason.value)
    backbone = timm.create_model("test_resnet", features_only=True)
    with pytest.raises(InputError, match="a FCOS given; checkpoints of mmdetection can be loaded into maskrcnn"):
        load_detector(build_detector(backbone, "fcos", 3, channels=8), state)
    with pytest.raises(InputError, match=r"no known detector among the parts of this checkpoint \(backbone\)"):
        describe_detector({"backbone.x": torch.zeros(1)})
