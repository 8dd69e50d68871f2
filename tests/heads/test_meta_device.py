"""Dense models made on the meta device and filled from a state dict are whole: anchors too."""

import pytest
import torch
from torch import nn

from tests.models.families import assert_whole, awake, small
from vitreous.heads.detect import DETECTORS, build_detector
from vitreous.heads.keypoints import build_keypoints
from vitreous.heads.segment import SEGMENTERS, build_segmenter

IMAGES = torch.randn(1, 3, 64, 96)


def build(head: str) -> nn.Module:
    backbone = small("paca_b0", 1, features_only=True)
    if head in DETECTORS:
        return build_detector(backbone, head, 3, channels=32).eval()
    return (build_segmenter(backbone, head, 3, width=16) if head in SEGMENTERS else build_keypoints(backbone, 3)).eval()


@torch.no_grad()
@pytest.mark.parametrize("head", [*DETECTORS, *SEGMENTERS, "keypoints"])
def test_filled_models_are_the_same(head: str) -> None:
    model = awake(build(head))
    with torch.device("meta"):
        filled = build(head)
    assert_whole(filled)
    filled.load_state_dict(model.state_dict(), assign=True)
    if head not in DETECTORS:
        assert torch.equal(filled(IMAGES), model(IMAGES))
        return
    found, expected = (detector.all_of(IMAGES, [0])[0] for detector in (filled, model))
    for key in ("boxes", "scores"):
        assert torch.isfinite(expected[key]).all()
        assert torch.equal(found[key], expected[key]), key
