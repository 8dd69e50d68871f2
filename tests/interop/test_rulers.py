"""Our measures of maps beside those of pytorch-grad-cam and Quantus, on the same maps.

Quantus brings an OpenCV that needs a display, so it is not installed for tests: `pip install quantus` runs its part.
"""

import numpy as np
import pytest
import torch
from torch import nn

from vitreous.attribution.target import ClassTarget
from vitreous.faithfulness.curves import curves, place_in_order
from vitreous.faithfulness.imputation import impute
from vitreous.faithfulness.localisation import energy, pointing

RANDOM = torch.Generator().manual_seed(0)
IMAGES, HEAT = torch.rand(2, 3, 16, 16, generator=RANDOM), torch.rand(2, 16, 16, generator=RANDOM)
TARGET = ClassTarget(labels=torch.tensor([1, 0]))


def test_imputation_is_that_of_road():
    road = pytest.importorskip("pytorch_grad_cam.metrics.road")
    keep = (torch.rand(16, 16, generator=RANDOM) < 0.3).float()
    theirs = road.NoisyLinearImputer(noise=0.0)(IMAGES[0], keep)
    ours = impute(IMAGES[:1], keep[None, None], noise=0, precision=1e-6)[0]
    torch.testing.assert_close(ours, theirs.view_as(ours), atol=1e-4, rtol=1e-4)


def test_deletion_is_pixel_flipping():
    quantus = pytest.importorskip("quantus")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 3)).eval()
    images = IMAGES[:, :1]  # they flip channels one by one
    flips = quantus.PixelFlipping(
        features_in_step=32, perturb_baseline=0.0, normalise=False, abs=False, disable_warnings=True
    )
    theirs = flips(
        model=model, x_batch=images.numpy(), y_batch=TARGET.labels.numpy(), a_batch=HEAT[:, None].numpy(), device="cpu"
    )
    ours = curves(model, images, HEAT, TARGET, fill="mean", portions=8).deletion
    np.testing.assert_allclose(np.array(theirs), ours[:, 1:].numpy(), atol=1e-5)


def test_pointing_and_energy_are_the_same():
    quantus = pytest.importorskip("quantus")
    masks = torch.rand(2, 16, 16, generator=RANDOM) < 0.5
    given = dict(
        model=None, x_batch=IMAGES.numpy(), y_batch=TARGET.labels.numpy(), a_batch=HEAT[:, None].numpy(),
        s_batch=masks[:, None].numpy(),
    )  # fmt: skip
    options = dict(normalise=False, abs=False, disable_warnings=True)
    assert quantus.PointingGame(**options)(**given) == pointing(HEAT, masks).bool().tolist()
    np.testing.assert_allclose(quantus.RelevanceMassAccuracy(**options)(**given), energy(HEAT, masks), rtol=1e-5)


def test_the_order_of_pixels_is_that_of_the_map():
    place = place_in_order(HEAT, (16, 16)).flatten(1)
    assert torch.equal(place.argsort(1), HEAT.flatten(1).argsort(1, descending=True))
