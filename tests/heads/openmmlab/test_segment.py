"""Checkpoints with mmsegmentation's and mmpose's names: the converted model says the same, and no key is lost."""

import re
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

from tests.support.families import awake
from tests.support.openmmlab import (
    CHANNELS,
    CLASSES,
    IMAGES,
    PACA,
    FCNHead,
    SimpleHead,
    UPerHead,
    paca,
    semantic_fpn,
    whole,
)
from tests.support.original_weights import paca_original, xcit_original
from vitreous.errors import InputError
from vitreous.heads.keypoints import build_keypoints
from vitreous.heads.openmmlab.conversion import Conversion
from vitreous.heads.openmmlab.segment import Release, describe_segmenter, load_keypoints, load_segmenter
from vitreous.heads.segment import Segmenter, build_segmenter
from vitreous.models.xcit import XCiT

XCIT = dict(dim=16, depth=4, heads=2, ends=(0, 1, 2, 3))


def upernet() -> tuple[dict[str, Tensor], Tensor]:
    backbone = paca()
    head, beside = awake(UPerHead(CHANNELS, 10, CLASSES)).eval(), awake(FCNHead(24, 6, CLASSES)).eval()
    with torch.no_grad():
        expected = head(backbone.features(IMAGES).maps)
    parts = {"decode_head": head, "auxiliary_head": beside}
    return whole(paca_original(backbone.state_dict()), parts), expected


def built(release: Release, **changes) -> Segmenter:
    arguments = {**PACA, "clusters": release.clusters, **changes}
    backbone = timm.create_model("paca_tiny", features_only=True, **arguments)
    return build_segmenter(backbone, release.head, release.classes, **release.head_args).eval()


def assert_same(logits: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def assert_accounted(report: Conversion, state: dict[str, Tensor], model: nn.Module) -> None:
    """Every tensor of the checkpoint and of the model has exactly one decision, and none went wrong."""
    assert not report.having("wrong shape", "missing", "unexpected"), str(report)
    assert sorted(d.theirs for d in report.decisions) == sorted(state)
    taken = [d.ours for d in report.having("loaded", "fresh")]
    assert sorted(taken) == sorted(key for key in model.state_dict() if not key.endswith("num_batches_tracked"))
    assert all(d.shape == tuple(state[d.theirs].shape) for d in report.having("left out", "unexpected"))


def test_semantic_fpn(tmp_path: Path) -> None:
    state, expected = semantic_fpn()
    torch.save({"meta": {"CLASSES": ("wall",)}, "state_dict": state}, tmp_path / "sem_fpn.pth")
    release = describe_segmenter(tmp_path / "sem_fpn.pth")
    assert release == Release("fpn", CLASSES, dict(pyramid=12, width=10), (6, 7, 6, 0))
    model = built(release)
    report = load_segmenter(model, tmp_path / "sem_fpn.pth")
    assert_accounted(report, state, model)
    with torch.no_grad():
        assert_same(model.output(IMAGES).logits, expected)


def test_upernet_with_its_auxiliary_head() -> None:
    state, expected = upernet()
    release = describe_segmenter(state)
    assert release == Release("upernet", CLASSES, dict(width=10, auxiliary_width=6), (6, 7, 6, 0))
    model = built(release)
    assert_accounted(load_segmenter(model, state), state, model)
    beside = FCNHead(24, 6, CLASSES).eval()
    beside.load_state_dict({k.removeprefix("auxiliary_head."): v for k, v in state.items() if "auxiliary_head" in k})
    with torch.no_grad():
        output = model.output(IMAGES)
        assert_same(output.logits, expected)
        assert_same(output.auxiliary, beside(model.levels(IMAGES)))


def test_paca_head() -> None:
    """That its tensors mean the same is shown with a recorded reference elsewhere; here all of them must arrive."""
    backbone = timm.create_model("paca_tiny", features_only=True, **PACA)
    original = awake(build_segmenter(backbone, "paca", CLASSES, width=10)).eval()
    theirs = {"inputs.": "convs.", "query.": "q.0.", "key.": "k.", "value.": "v.", "classifier.": "conv_seg."}
    state = paca_original(original.levels.backbone.state_dict())
    state = {f"backbone.{key}": value for key, value in state.items()}
    for key, value in original.decoder.state_dict().items():
        for ours, name in theirs.items():
            key = name + key.removeprefix(ours) if key.startswith(ours) else key
        if key.startswith(("k.", "v.")):
            key = key.replace("linear", "0").replace("norm", "2")
        elif not key.startswith(("conv_seg", "clustering.1")):
            path, number, kind = key.rsplit(".", 2)
            key = f"{path}.{'conv' if number == '0' else 'bn'}.{kind}"
        state[f"decode_head.{key}"] = value
    assert "decode_head.convs.3.bn.running_var" in state
    assert "decode_head.clustering.0.conv.weight" in state
    release = describe_segmenter(state)
    assert release == Release("paca", CLASSES, dict(width=10), (6, 7, 6, 0))
    model = built(release)
    assert_accounted(load_segmenter(model, state), state, model)
    with torch.no_grad():
        torch.testing.assert_close(model(IMAGES), original(IMAGES))


def test_xcit_and_what_its_dense_form_has_no_use_for() -> None:
    torch.manual_seed(2)
    backbone = awake(XCiT(**XCIT, dense=True)).eval()
    names = xcit_original(awake(XCiT(**XCIT, num_classes=0)))
    for key, value in backbone.state_dict().items():
        if match := re.match(r"stages\.(\d)\.rescale\.(.*)", key):
            names[f"fpn{int(match[1]) + 1}.{match[2]}"] = value
    backbone.load_weights(names)
    head, beside = awake(UPerHead((16,) * 4, 6, 3)).eval(), awake(FCNHead(16, 4, 3)).eval()
    state = whole(names, {"decode_head": head, "auxiliary_head": beside})
    release = describe_segmenter(state)
    assert release == Release("upernet", 3, dict(width=6, auxiliary_width=4), None)
    fresh = timm.create_model("xcit_nano_12_p16", features_only=True, **XCIT)
    model = build_segmenter(fresh, release.head, release.classes, **release.head_args).eval()
    report = load_segmenter(model, state)
    assert_accounted(report, state, model)
    left = [d.theirs for d in report.having("left out") if "num_batches" not in d.theirs]
    assert {key.split(".")[1] for key in left} == {"cls_token", "cls_attn_blocks", "norm"}
    with torch.no_grad():
        assert_same(model.output(IMAGES).logits, head(backbone.features(IMAGES).maps))


@pytest.mark.parametrize("part", ["keypoint_head", "head"])
def test_keypoints(part: str) -> None:
    backbone = paca()
    head = awake(SimpleHead(32, 6, 17)).eval()
    state = whole(paca_original(backbone.state_dict()), {part: head})
    release = describe_segmenter(state)
    assert release == Release("keypoints", 17, dict(width=6), (6, 7, 6, 0))
    model = build_keypoints(timm.create_model("paca_tiny", features_only=True, **PACA), 17, **release.head_args).eval()
    assert_accounted(load_keypoints(model, state), state, model)
    with torch.no_grad():
        assert_same(model(IMAGES), head(backbone.features(IMAGES).maps))


def test_other_classes_and_clusters_start_afresh_by_name() -> None:
    state, _ = upernet()
    backbone = timm.create_model("paca_tiny", features_only=True, **{**PACA, "clusters": (9, 7, 6, 0)})
    model = build_segmenter(backbone, "upernet", 2, width=10, auxiliary_width=6)
    report = load_segmenter(model, state)
    assert [d.ours for d in report.having("fresh")] == [
        "decoder.classifier.weight",
        "decoder.classifier.bias",
        "decoder.auxiliary_classifier.weight",
        "decoder.auxiliary_classifier.bias",
        "levels.body.model.stages.0.blocks.0.clustering.logits.weight",
    ]
    line = "fresh: decode_head.conv_seg.weight -> decoder.classifier.weight (5, 10, 1, 1) (here (2, 10, 1, 1))"
    assert line in str(report)


def test_what_does_not_fit_is_named_and_nothing_is_touched() -> None:
    state, _ = semantic_fpn()
    model = built(describe_segmenter(state))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    damaged = dict(state)
    damaged["roi_head.bbox_head.fc_cls.weight"] = torch.zeros(3, 3)
    damaged["neck.fpn_convs.0.conv.weight"] = torch.zeros(12, 12, 1, 1)
    del damaged["decode_head.scale_heads.3.4.conv.weight"]
    with pytest.raises(InputError) as reason:
        load_segmenter(model, damaged)
    for line in (
        "the given state dict does not fit this Segmenter",
        "unexpected: roi_head.bbox_head.fc_cls.weight (3, 3) (no such part here)",
        "wrong shape: neck.fpn_convs.0.conv.weight -> decoder.fpn.layer_blocks.0.0.weight (12, 12, 1, 1)",
        "missing: decoder.scales.3.2.0.weight (10, 10, 3, 3)",
        "strict=False loads what fits",
    ):
        assert line in str(reason.value)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    report = load_segmenter(model, damaged, strict=False)
    assert len(report.having("wrong shape", "missing", "unexpected")) == 3
    torch.testing.assert_close(model.state_dict()["decoder.classifier.bias"], state["decode_head.conv_seg.bias"])


def test_what_is_no_such_checkpoint() -> None:
    state, _ = semantic_fpn()
    model = built(describe_segmenter(state))
    with pytest.raises(InputError, match=r"has no part 'backbone\.'; it has: stem"):
        load_segmenter(model, {"stem.weight": torch.zeros(1)})
    with pytest.raises(InputError, match=r"no known head among the parts of this checkpoint \(backbone\)"):
        describe_segmenter({"backbone.x": torch.zeros(1)})
    with pytest.raises(InputError, match="lacks the classification layer"):
        describe_segmenter({key: value for key, value in state.items() if "conv_seg" not in key})
    state["decode_head.conv_seg.bias"] = torch.full((CLASSES,), torch.nan)
    with pytest.raises(InputError, match=r"NaN or infinite values in 1 tensors, first decoder\.classifier\.bias"):
        load_segmenter(model, state)
