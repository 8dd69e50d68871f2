"""Our measures of maps beside those of pytorch-grad-cam and Quantus, on the same maps.

Quantus brings an OpenCV that needs a display, so it is not installed for tests: `pip install quantus` runs its part.
What it would show is also derived here by hand.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from pytorch_grad_cam.metrics import perturbation_confidence, road
from pytorch_grad_cam.metrics.cam_mult_image import CamMultImageConfidenceChange
from pytorch_grad_cam.utils.model_targets import ClassifierOutputSoftmaxTarget
from torch import nn

from vitreous.attribution.controls import shuffled
from vitreous.attribution.method import Method, Needs
from vitreous.attribution.target import ClassTarget
from vitreous.faithfulness import curves as curves_module
from vitreous.faithfulness.curves import curves, place_in_order
from vitreous.faithfulness.imputation import impute
from vitreous.faithfulness.localisation import energy, pointing
from vitreous.faithfulness.sanity import randomisation

RANDOM = torch.Generator().manual_seed(0)
IMAGES, HEAT = torch.rand(2, 3, 16, 16, generator=RANDOM), torch.rand(2, 16, 16, generator=RANDOM)
TARGET = ClassTarget(labels=torch.tensor([1, 0]))
THEIR_TARGETS = [ClassifierOutputSoftmaxTarget(label) for label in TARGET.labels.tolist()]
PORTIONS = 4
EXACT = partial(impute, noise=0, precision=1e-6)
CLOSE = 1e-4  # of probabilities, where equations are solved by two ways in single precision


def linear_model(channels: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * 256, 3)).eval()


@dataclass(frozen=True)
class Products(Method):
    """Weight times pixel: all that a linear model's answer is made of."""

    name = "products"
    summary = "Weight times pixel."
    needs = Needs(passes=1)

    def heat(self, model, images, target):
        weight = next(part for part in model if isinstance(part, nn.Linear)).weight
        return (weight[target.labels] * images.flatten(1)).unflatten(1, images.shape[1:]).sum(1)


def test_imputation_is_that_of_road():
    keep = (torch.rand(16, 16, generator=RANDOM) < 0.3).float()
    theirs = road.NoisyLinearImputer(noise=0.0)(IMAGES[0], keep)
    ours = impute(IMAGES[:1], keep[None, None], noise=0, precision=1e-6)[0]
    torch.testing.assert_close(ours, theirs.view_as(ours), atol=1e-4, rtol=1e-4)


class QuietImputer(road.NoisyLinearImputer):
    def __init__(self):
        super().__init__(noise=0.0)


@pytest.fixture
def exact(monkeypatch):
    """Without noise, which both draw by themselves."""
    monkeypatch.setattr(curves_module, "impute", EXACT)
    monkeypatch.setattr(road, "NoisyLinearImputer", QuietImputer)


def test_insertion_and_deletion_are_roads_confidences(exact):
    """Least relevant removed first is insertion, seen from its other end."""
    model, theirs = linear_model(3), {}
    ours = curves(model, IMAGES, HEAT, TARGET, fill="linear", portions=PORTIONS)
    for name, kind in (
        ("deletion", perturbation_confidence.RemoveMostRelevantFirst),
        ("insertion", perturbation_confidence.RemoveLeastRelevantFirst),
    ):
        metrics = [
            perturbation_confidence.PerturbationConfidenceMetric(kind(kept, road.NoisyLinearImputer()))
            for kept in (25, 50, 75)
        ]
        found = [metric(IMAGES, HEAT.numpy(), THEIR_TARGETS, model, return_diff=False) for metric in metrics]
        theirs[name] = np.stack(found, 1)  # (B, S - 1), by the part of the picture that is kept
    np.testing.assert_allclose(ours.insertion[:, 1:-1].numpy(), theirs["insertion"], atol=CLOSE)
    np.testing.assert_allclose(ours.deletion[:, 1:-1].flip(1).numpy(), theirs["deletion"], atol=CLOSE)


def test_road_combined_is_half_our_difference_but_for_the_ends(exact):
    """Both curves share their ends, which only our area counts: S - 1 of S portions, where ROAD has a mean of S - 1."""
    model = linear_model(3)
    theirs = road.ROADCombined([25, 50, 75])(IMAGES, HEAT.numpy(), THEIR_TARGETS, model)
    ours = curves(model, IMAGES, HEAT, TARGET, fill="linear", portions=PORTIONS).difference
    np.testing.assert_allclose(ours.numpy(), 2 * (PORTIONS - 1) / PORTIONS * theirs, atol=CLOSE)


def test_confidence_under_a_soft_mask_is_another_measure():
    """Multiplied into the picture, a map counts by its values; with us by its order alone."""
    model, metric = linear_model(3), CamMultImageConfidenceChange()
    theirs = [metric(IMAGES, heat.numpy(), THEIR_TARGETS, model) for heat in (HEAT, HEAT**3)]
    ours = [curves(model, IMAGES, heat, TARGET, portions=PORTIONS).difference for heat in (HEAT, HEAT**3)]
    assert torch.equal(*ours)
    assert np.abs(theirs[0] - theirs[1]).min() > 1e-3


def flipped(model: nn.Module, heat: torch.Tensor) -> np.ndarray:
    """Probabilities after each eighth of the pixels, brightest first, has become 0, by hand: (B, 8)."""
    pixels = IMAGES[:, :1].flatten(1).numpy().copy()
    weight, bias = (part.detach().numpy() for part in model[1].parameters())
    order, rows, curve = np.argsort(-heat.flatten(1).numpy(), axis=1), np.arange(2), []
    for part in np.split(order, 8, axis=1):
        pixels[rows[:, None], part] = 0
        powers = np.exp(pixels @ weight.T + bias)
        curve.append((powers / powers.sum(1, keepdims=True))[rows, TARGET.labels.numpy()])
    return np.stack(curve, 1)


def pixel_flipping(model: nn.Module, heat: torch.Tensor) -> np.ndarray:
    quantus = pytest.importorskip("quantus")
    flips = quantus.PixelFlipping(
        features_in_step=32, perturb_baseline=0.0, normalise=False, abs=False, disable_warnings=True
    )
    images, labels = IMAGES[:, :1].numpy(), TARGET.labels.numpy()  # of several channels they flip each by itself
    return np.array(flips(model=model, x_batch=images, y_batch=labels, a_batch=heat[:, None].numpy(), device="cpu"))


@pytest.mark.parametrize("theirs", [flipped, pixel_flipping])
def test_deletion_is_pixel_flipping_and_insertion_the_same_backwards(theirs):
    model = linear_model(1)
    ours = curves(model, IMAGES[:, :1], HEAT, TARGET, fill="mean", portions=8)
    np.testing.assert_allclose(theirs(model, HEAT), ours.deletion[:, 1:].numpy(), atol=1e-5)
    np.testing.assert_allclose(theirs(model, 1 - HEAT), ours.insertion.flip(1)[:, 1:].numpy(), atol=1e-5)


def rank_likeness(model: nn.Module, heat: torch.Tensor) -> np.ndarray:
    """Of the map and that of shuffled weights, by hand."""
    other = Products()(shuffled(model), IMAGES[:, :1], TARGET)
    ranks = [maps.flatten(1).numpy().argsort(1).argsort(1) for maps in (heat, other)]
    return np.array([np.corrcoef(*pair)[0, 1] for pair in zip(*ranks, strict=True)])


def parameter_randomisation(model: nn.Module, heat: torch.Tensor) -> np.ndarray:
    quantus = pytest.importorskip("quantus")
    random = shuffled(model)[1].state_dict()  # theirs draws weights anew, layer by layer; here it draws ours
    layer = type("Layer", (nn.Linear,), {"reset_parameters": lambda self: self.load_state_dict(random)})
    own = layer(256, 3)
    own.load_state_dict(model[1].state_dict())
    metric = quantus.MPRT(return_last_correlation=True, normalise=False, abs=False, disable_warnings=True)

    def explain(model, inputs, targets, **_options):
        target = ClassTarget(labels=torch.as_tensor(targets))
        return Products()(model.eval(), torch.as_tensor(inputs), target)[:, None].numpy()

    return np.array(
        metric(
            model=nn.Sequential(nn.Flatten(), own).eval(),
            x_batch=IMAGES[:, :1].numpy(),
            y_batch=TARGET.labels.numpy(),
            a_batch=heat[:, None].numpy(),
            explain_func=explain,
            device="cpu",
        )
    )


@pytest.mark.parametrize("theirs", [rank_likeness, parameter_randomisation])
def test_randomisation_is_the_size_of_the_rank_correlation(theirs):
    model = linear_model(1)
    heat = Products()(model, IMAGES[:, :1], TARGET)
    ours = randomisation(Products(), model, IMAGES[:, :1], TARGET)
    np.testing.assert_allclose(np.abs(theirs(model, heat)), ours.numpy(), atol=1e-5)


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
