"""Teaching an explainer: it gets better than its start, on pictures it has not seen, and leaves the model alone."""

import copy

import pytest
import torch

from tests.support.explained_models import as_input, family, pictures, trained
from vitreous.attribution.explainer import new_explainer
from vitreous.attribution.explainer_folder import weights_fingerprint
from vitreous.attribution.fill import soft_mask
from vitreous.attribution.method import resolve
from vitreous.data.shapes.samples import Shapes
from vitreous.errors import InputError
from vitreous.explanations.learning import (
    Lessons,
    labels_to_explain,
    likeliest_classes,
    picture_checksum,
    share_of_rate,
    teach,
    usual_steps,
)
from vitreous.faithfulness.curves import curves


def shapes(split: str, count: int) -> torch.Tensor:
    scenes = Shapes(split, size=32)
    return torch.stack([as_input(scenes[i].image) for i in range(count)])


@pytest.fixture(scope="module")
def taught():
    model = trained()[0]
    explainer, losses = teach(model, shapes("train", 200), Lessons(steps=80, batch_size=12))
    return model, explainer, losses


def test_the_loss_falls(taught):
    losses = torch.tensor(taught[2])
    assert losses[-20:].mean() < losses[:20].mean() - 0.05


def test_it_explains_unseen_pictures_better_than_what_it_starts_from(taught):
    model, explainer, _ = taught
    images = shapes("val", 40)
    target = resolve(model, images, None)
    start = new_explainer(model, images)
    with torch.no_grad():
        differences = [
            curves(model, images, one.explain(model, images, target.labels), target, portions=8).difference
            for one in (start, explainer)
        ]
    before, after = (difference.mean() for difference in differences)
    assert after > before + 0.05


def test_the_model_stays_as_it_was():
    model = copy.deepcopy(trained()[0])
    next(model.parameters()).requires_grad_(False)
    before, asked = weights_fingerprint(model), [parameter.requires_grad for parameter in model.parameters()]
    teach(model, shapes("train", 70), Lessons(steps=2, batch_size=4))
    assert weights_fingerprint(model) == before
    assert [parameter.requires_grad for parameter in model.parameters()] == asked
    assert all(parameter.grad is None for parameter in model.parameters())


def test_batch_statistics_stay_as_they_were():
    model = family("emsnet_xxtiny")
    before = weights_fingerprint(model)
    assert any("running_mean" in name for name in model.state_dict())
    teach(model, pictures(8), Lessons(steps=2, batch_size=4))
    assert weights_fingerprint(model) == before
    with pytest.raises(InputError, match="training mode"):
        teach(model.train(), pictures(8), Lessons(steps=2, batch_size=4))


def test_the_same_seed_gives_the_same_explainer():
    model, images = family(), pictures(8)
    first, again, other = (
        teach(model, images, Lessons(steps=3, batch_size=4, seed=seed))[0].state_dict() for seed in (0, 0, 1)
    )
    torch.rand(1)  # the state of torch's own generator does not matter
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["first.weight"], other["first.weight"])


def test_weights_that_are_no_numbers_are_told():
    model = family()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(InputError, match="the loss is no number"):
        teach(model, pictures(4), Lessons(steps=1, batch_size=2))


def test_other_likely_classes_are_explained_too():
    model, images = family(), pictures(4)
    order = model(images).argsort(1, descending=True).repeat(25, 1)
    random = torch.Generator().manual_seed(0)
    likeliest = likeliest_classes(model, lambda rows: images[rows], len(images), 3).repeat(25, 1)
    drawn = torch.stack([labels_to_explain(likeliest, random) for _ in range(8)])
    assert 0.65 < (drawn == order[:, 0]).float().mean() < 0.85  # three in four
    assert all((drawn == order[:, place]).any() for place in range(5))


def test_a_mask_marks_the_share_that_was_asked_for():
    heat = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(0)) * 100  # so that edges are sharp
    share = torch.tensor([0.1, 0.3, 0.6])
    mask = soft_mask(heat, share)
    torch.testing.assert_close(mask.mean((1, 2)), share, atol=2 / 256, rtol=0)
    for row in range(3):
        inside = mask[row] > 0.5
        assert heat[row][inside].min() > heat[row][~inside].max()


def test_checksums_tell_pictures_apart():
    a = torch.zeros(3, 4, 4, dtype=torch.uint8)
    b = a.clone()
    assert picture_checksum(a) == picture_checksum(b)
    b[0, 0, 0] = 1
    assert picture_checksum(a) != picture_checksum(b)


def test_the_rate_rises_and_falls_to_nothing():
    rates = [share_of_rate(step / 100) for step in range(101)]
    assert 0 < rates[0] < rates[5] < rates[10]
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0)


def test_small_pictures_get_more_steps():
    assert [usual_steps(side * side) for side in (32, 64, 128, 224)] == [3000, 3000, 1000, 1000]
    assert 1000 < usual_steps(96 * 96) < 3000
