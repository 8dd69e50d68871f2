"""Views, schedules and warnings of the task dino."""

import itertools
import random
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from tests.support.tiny_data import picture
from vitreous.data.multi_crop import MultiCrop, UnlabelledViews, recoloured, stack_views
from vitreous.data.source import open_data
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.heads.dino import Answers
from vitreous.tasks.base import Moment
from vitreous.tasks.dino import DinoOptions, DinoTask
from vitreous.training.settings import TrainSettings

CROPS = dict(local_crops=3, local_size=16, global_scale=(0.4, 1.0), local_scale=(0.05, 0.4), color_jitter=0.4)


def seed(number: int = 0) -> None:
    random.seed(number)
    torch.manual_seed(number)


def test_views_are_two_large_and_some_small_crops_that_differ(tmp_path):
    picture(tmp_path / "a.png", (90, 60))
    view = MultiCrop(Preprocess((32, 32)), **CROPS)
    image = Image.open(tmp_path / "a.png").convert("L")
    seed()
    first = view(image)
    assert [tuple(crop.shape) for crop in first] == [(3, 32, 32)] * 2 + [(3, 16, 16)] * 3
    assert all(crop.dtype == torch.uint8 for crop in first)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[2], first[3])
    seed()
    assert all(torch.equal(one, two) for one, two in zip(first, view(image), strict=True))
    assert view.at_least == 83  # a large crop of two fifths of the area, three quarters as wide as high


def test_views_have_no_colours_as_often_as_asked():
    image = Image.new("RGB", (40, 40), (200, 40, 90))
    for grey in (0.0, 1.0):
        seed()
        for crop in MultiCrop(Preprocess((32, 32)), **CROPS, grey=grey)(image):
            assert torch.equal(crop[0], crop[1]) == bool(grey)
    with pytest.raises(InputError, match="grey"):
        MultiCrop(Preprocess((32, 32)), **CROPS, grey=1.5)


def test_recoloured_pictures_keep_their_channels_in_another_order():
    pixels = np.random.default_rng(0).integers(60, 200, (24, 32, 3), np.uint8)
    orders, strengths = set(), []
    for seed_ in range(60):
        random.seed(seed_)
        found = np.asarray(recoloured(Image.fromarray(pixels))).astype(float)
        fits = {order: fitted(pixels[..., order], found) for order in itertools.permutations(range(3))}
        order = min(fits, key=lambda one: fits[one][1])
        orders.add(order)
        strengths.append(fits[order][0])
        assert fits[order][1] < 1, "a mixture with its own grey, to a grey level"
    assert len(orders) == 6
    assert min(strengths) < 0.2 < 1.8 < max(strengths)


def fitted(pixels, found):
    """How strong the colours of `found` are beside those of pixels, and how far it is from such a mixture."""
    grey = np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).convert("L")).astype(float)[..., None]
    colours = pixels - grey
    inside = (found > 0) & (found < 255)
    strength = float((colours * (found - grey))[inside].sum() / (colours * colours)[inside].sum())
    return strength, float(np.abs(grey + strength * colours - found)[inside].mean())


def test_the_contrast_is_a_term_of_its_own_with_its_weight():
    torch.manual_seed(0)
    answers = Answers(torch.randn(8, 5), torch.randn(4, 5), torch.randn(4, 3), F.normalize(torch.randn(8, 2), dim=1))
    terms = {}
    for weight in (0.0, 1.0, 10.0):
        task = DinoTask(options=DinoOptions(contrast=weight))
        task.moment = Moment(step=0, steps=10, steps_per_epoch=10)
        terms[weight] = task.losses(lambda images, pictures: answers, None, {"pictures": 2})
    assert list(terms[0.0]) == ["cross_view"]
    assert terms[10.0]["contrast"].item() == pytest.approx(10 * terms[1.0]["contrast"].item())
    assert terms[10.0]["cross_view"] == terms[0.0]["cross_view"]


def test_batches_are_view_after_view_one_tensor_a_size():
    samples = [
        ([torch.full((3, s, s), 10 * v + n, dtype=torch.uint8) for v, s in enumerate((8, 8, 4))], {}) for n in (1, 2)
    ]
    (large, small), _ = stack_views(samples)
    assert large[:, 0, 0, 0].tolist() == [1, 2, 11, 12]
    assert small[:, 0, 0, 0].tolist() == [21, 22]
    same = [([torch.zeros(3, 8, 8)] * 3, {}) for _ in range(2)]
    assert [len(group) for group in stack_views(same)[0]] == [6], "one pass for crops of one size"


def test_labels_are_not_there_when_it_learns():
    images = open_data("shapes", "train", size=(32, 32), count=2, targets="pictures")
    assert UnlabelledViews(images, MultiCrop(Preprocess((32, 32)), **CROPS))[0][1] == {}
    assert UnlabelledViews(images, Preprocess((32, 32)).pixels)[0][1] == images.target(0)


def test_schedules_are_those_of_the_paper():
    options = DinoOptions(teacher_temperature=(0.04, 0.07), teacher_warmup_epochs=30, teacher_momentum=0.996)
    assert options.temperature(0) == 0.04
    assert options.temperature(15) == pytest.approx(0.055)
    assert options.temperature(200) == pytest.approx(0.07)
    assert DinoOptions(teacher_temperature=(0.04, 0.07)).temperature(0) == pytest.approx(0.07)
    assert options.momentum(0) == pytest.approx(0.996)
    assert options.momentum(0.5) == pytest.approx(0.998)
    assert options.momentum(1) == 1
    settings = TrainSettings("paca_b0", "shapes", weight_decay=0.04, weight_decay_end=0.4)
    assert [settings.weight_decay_at(p) for p in (0, 0.5, 1)] == pytest.approx([0.04, 0.22, 0.4])


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        (dict(spread=1e-4, teacher_entropy=1.0), "same features: its answers are nearly uniform"),
        (dict(spread=1e-4, teacher_entropy=0.0), "same features: it always answers with one"),
        (dict(spread=1e-4, teacher_entropy=0.5), "same features: lower --lr"),
        (dict(spread=0.4, teacher_entropy=1.0), "same answer: .*lower --teacher-temperature"),
        (dict(spread=0.4, teacher_entropy=0.5), "same answer: lower --lr"),
    ],
)
def test_collapse_is_told_with_its_likely_cause(figures, told):
    task = DinoTask()
    task.moment = Moment(step=50, steps=100, steps_per_epoch=10)
    figures = figures | dict(teacher_information=1e-4, kl=0.0)
    (doubt,) = task.doubts(figures)
    assert re.search(told, doubt)
    task.moment = Moment(step=5, steps=100, steps_per_epoch=10)
    assert not task.doubts(figures), "at the start features are alike, and answers uniform"


def test_a_healthy_run_is_not_doubted():
    task = DinoTask()
    task.moment = Moment(step=50, steps=100, steps_per_epoch=10)
    assert not task.doubts(dict(spread=0.4, teacher_entropy=0.6, teacher_information=0.3, kl=1.0))
    assert not task.doubts({})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (dict(ema=0.9), "--teacher-momentum"),
        (dict(head_args=("channels=3",)), "unknown argument 'channels'"),
        (dict(cluster_overlap=0.1), "cluster_overlap given"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes, told):
    settings = TrainSettings("paca_b0", "shapes", task="dino", **changes)
    with pytest.raises(InputError, match=told):
        DinoTask.from_settings(settings, None)


def test_settings_of_dino_are_for_dino():
    with pytest.raises(InputError, match="it is for --task dino, and this is classify"):
        TrainSettings("paca_b0", "shapes", local_crops=2)
    with pytest.raises(InputError, match="teacher_temperature"):
        TrainSettings("paca_b0", "shapes", task="dino", teacher_temperature=(0.0, 0.1))
    with pytest.raises(InputError, match=r"global_scale 0\.8 0\.4"):
        MultiCrop(Preprocess((32, 32)), **CROPS | dict(global_scale=(0.8, 0.4)))
