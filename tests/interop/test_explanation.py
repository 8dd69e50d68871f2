"""pytorch-grad-cam and captum, given `model.stages[i].output` as the layer and no reshaping function."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captum.attr import IntegratedGradients, LayerGradCam
from pytorch_grad_cam import GradCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import nn
from torchvision.transforms.functional import gaussian_blur

import vitreous
from tests.support.families import ONE_OF_EACH, small

IMAGES = torch.randn(2, 3, 70, 99, generator=torch.Generator().manual_seed(1))
CLASS = 1


@pytest.mark.parametrize("stage", [1, -1])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_grad_cam(name: str, stage: int) -> None:
    model = small(name, 1).eval()
    with GradCAM(model, [model.stages[stage].output]) as cam:
        speaks_for = cam(IMAGES, [ClassifierOutputTarget(CLASS)] * len(IMAGES))
        speaks_against = cam(IMAGES, [lambda logits: -logits[CLASS]] * len(IMAGES))
    assert speaks_for.shape == (2, 70, 99)
    # Values below 0 are cut off and the rest is scaled to fill 0 to 1, so that one of the two does unless no gradient
    # arrived.
    filled = np.maximum(np.ptp(speaks_for, axis=(1, 2)), np.ptp(speaks_against, axis=(1, 2)))
    assert (filled > 0.5).all()
    assert np.isfinite(filled).all()


def weighted(model: nn.Module, stage: int) -> torch.Tensor:
    """Grad-CAM in three lines: channels weighted by their mean gradient."""
    with vitreous.record(model, f"stages.{stage}.output") as taps:
        logits = model(IMAGES)
    features = taps[f"stages.{stage}.output"]
    (gradient,) = torch.autograd.grad(logits[:, CLASS].sum(), features)
    return (gradient.mean((2, 3), keepdim=True) * features).sum(1, keepdim=True).detach()  # (B, 1, H, W)


def scaled(maps: torch.Tensor) -> torch.Tensor:
    maps = maps - maps.amin((2, 3), keepdim=True)
    return maps / maps.amax((2, 3), keepdim=True)


def test_grad_cam_is_what_its_definition_says() -> None:
    model = small("paca_b0", 1).eval()
    with GradCAM(model, [model.stages[1].output]) as cam:
        theirs = cam(IMAGES, [ClassifierOutputTarget(CLASS)] * len(IMAGES))
    ours = scaled(F.interpolate(scaled(weighted(model, 1).relu()), IMAGES.shape[2:], mode="bilinear"))
    # OpenCV's weights of linear interpolation have eleven bits.
    np.testing.assert_allclose(theirs, ours[:, 0].numpy(), atol=2e-3)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_captum_layer_grad_cam(name: str) -> None:
    model = small(name, 1).eval()
    for stage in (1, 3):
        maps = LayerGradCam(model.forward, model.stages[stage].output).attribute(IMAGES, target=CLASS)
        torch.testing.assert_close(maps.detach(), weighted(model, stage), rtol=1e-4, atol=1e-7)
        assert (maps.amax((2, 3)) > maps.amin((2, 3))).all()


def assert_adds_up(model: nn.Module, image: torch.Tensor, baseline: torch.Tensor, *, steps: int, rtol: float) -> None:
    attribution = IntegratedGradients(model).attribute(image, baseline, target=CLASS, n_steps=steps)
    assert attribution.shape == image.shape
    with torch.no_grad():
        change = (model(image) - model(baseline))[0, CLASS]
    torch.testing.assert_close(attribution.sum(), change, rtol=rtol, atol=0.0)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_captum_integrated_gradients_between_near_images(name: str) -> None:
    """So near that no foreground token of PartialFormer becomes background, where its output jumps."""
    image = IMAGES[:1].double()
    near = image + 1e-5 * torch.randn_like(image)
    # A change of 1e-10 between outputs near 1 keeps six digits in double precision.
    assert_adds_up(small(name, 1).double().eval(), image, near, steps=4, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in ONE_OF_EACH if name != "partialformer_b0"])
def test_captum_integrated_gradients_from_a_blurred_image(name: str) -> None:
    # Sixteen steps of a smooth path: the sum was seen within 0.5 % of the integral.
    assert_adds_up(small(name, 1).eval(), IMAGES[:1], gaussian_blur(IMAGES[:1], 31), steps=16, rtol=0.03)
