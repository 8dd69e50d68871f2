"""Dense models that other libraries make or change: filled after creation on the meta device, watched by hooks."""

import pytest
import torch
from torch import nn

from tests.support.families import assert_whole, awake, small
from vitreous.heads.detect import DETECTORS, build_detector
from vitreous.heads.keypoints import build_keypoints
from vitreous.heads.segment import SEGMENTERS, build_segmenter

IMAGES = torch.randn(1, 3, 64, 96)


def build(head: str) -> nn.Module:
    backbone = small("paca_b0", 1, features_only=True)
    if head in DETECTORS:
        return build_detector(backbone, head, 3, channels=32).eval()
    return (build_segmenter(backbone, head, 3, width=16) if head in SEGMENTERS else build_keypoints(backbone, 3)).eval()


HEADS = pytest.mark.parametrize("head", [*DETECTORS, *SEGMENTERS, "keypoints"])


@torch.no_grad()
@HEADS
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


@torch.no_grad()
@HEADS
def test_every_layer_can_be_watched(head: str) -> None:
    model = awake(build(head))
    run = model.all_of if head in DETECTORS else model
    arguments = (IMAGES, [0]) if head in DETECTORS else (IMAGES,)
    expected, seen = run(*arguments), set()
    unused = ("mask_", "auxiliary")  # by this call
    kinds = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.GroupNorm)
    layers = [path for path, layer in model.named_modules() if isinstance(layer, kinds)]
    for path in layers:
        model.get_submodule(path).register_forward_hook(lambda *_, path=path: seen.add(path))
    torch.testing.assert_close(run(*arguments), expected, rtol=1e-3, atol=1e-3)
    missed = [path for path in layers if path not in seen and not any(part in path for part in unused)]
    assert not missed
