"""Every task: overfits eight toy images; perfect predictions score 1. A new task is a new row of TASKS."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from vitreous.data.detector_boxes import Found
from vitreous.data.loader import stack
from vitreous.data.mixup import Mixup
from vitreous.data.source import open_data
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.heads.detect import paste_masks
from vitreous.tasks.base import load_task
from vitreous.tasks.classify import ClassifyTask
from vitreous.tasks.detect import whole_masks
from vitreous.tasks.keypoints import KeypointsTask
from vitreous.training.settings import TrainSettings

TASKS = ("classify",)


def toy_batch(task):
    images = open_data("shapes", "train", size=(32, 32), count=8)
    samples = task.dataset(images, Preprocess((32, 32)))
    return stack([samples[index] for index in range(8)])


def toy_model(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, classes))


@pytest.fixture(params=TASKS)
def task(request):
    return load_task(request.param)(open_data("shapes", "train", size=(32, 32), count=1).classes)


def test_overfits_eight_toy_images(task):
    images, targets = toy_batch(task)
    model = task.model(toy_model(len(task.classes)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(60):
        loss = sum(task.losses(model, images, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    metric = task.metric()
    metric.update(task.predict(model.eval(), images), targets)
    assert metric.compute()[task.main_metric] == 1
    assert loss < 0.1


def test_perfect_predictions_score_one(task):
    _, targets = toy_batch(task)
    metric = task.metric()
    metric.update([{key: value[i][None] for key, value in targets.items()} for i in range(8)], targets)
    assert set(metric.compute().values()) == {1.0}


def test_one_pass_gives_the_same_losses_and_predictions_as_two(task):
    images, targets = toy_batch(task)
    model = toy_model(len(task.classes)).eval()
    losses, predictions = task.assess(model, images, targets)
    assert losses == task.losses(model, images, targets)
    for one, two in zip(predictions, task.predict(model, images), strict=True):
        assert all(torch.equal(one[key], two[key]) for key in one)


def test_scores_are_probabilities_best_first(task):
    images, _ = toy_batch(task)
    for prediction in task.predict(toy_model(len(task.classes)), images):
        scores = prediction["scores"]
        assert torch.equal(scores, scores.sort(descending=True).values)
        assert 0 <= scores.sum() <= 1 + 1e-6


def test_smoothing_and_mixing_give_the_textbook_loss():
    logits, labels, shares = torch.randn(4, 3), torch.tensor([0, 1, 2, 1]), torch.rand(4, 3).softmax(1)
    smooth = ClassifyTask(("a", "b", "c"), label_smoothing=0.2)
    hard = F.one_hot(labels, 3) * 0.8 + 0.2 / 3
    for given, target in [(labels, hard), (shares, shares * 0.8 + 0.2 / 3)]:
        found = smooth.losses(nn.Identity(), logits, {"labels": given})["cross_entropy"]
        assert torch.allclose(found, -(target * logits.log_softmax(1)).sum(1).mean())
    task = ClassifyTask(("a", "b", "c"), mixup=Mixup(mixup=1.0))
    _, targets = task.augment_batch(torch.rand(4, 3, 8, 8), {"labels": labels}, np.random.default_rng(0))
    assert targets["labels"].shape == (4, 3)


def test_unknown_task_and_wrong_smoothing():
    with pytest.raises(InputError, match="unknown task 'clasify'; accepted: classify"):
        load_task("clasify")
    with pytest.raises(InputError, match="label smoothing 1"):
        ClassifyTask(("a",), label_smoothing=1)


def test_masks_are_pasted_alike_alone_and_within_their_boxes():
    """Boxes at the border, beyond it, thinner than a pixel and without area; masks that are full to their edge."""
    generator = torch.Generator().manual_seed(0)
    corner, side = torch.rand(40, 2, generator=generator) * 60 - 8, torch.rand(40, 2, generator=generator) * 30
    boxes = torch.cat([corner, corner + side], 1).clamp(min=0)
    boxes[0], boxes[1], boxes[2] = torch.tensor([3.0, 3, 9, 9]), torch.tensor([5.2, 5, 5.4, 9]), torch.zeros(4)
    masks = torch.rand(40, 28, 28, generator=generator)
    masks[0] = 1.0
    found = whole_masks(masks, boxes, (48, 56))
    assert found.any((1, 2)).sum() > 20
    assert torch.equal(found, paste_masks(masks, boxes, (48, 56)) >= 0.5)
    assert whole_masks(masks[:0], boxes[:0], (4, 5)).shape == (0, 4, 5)


@pytest.mark.parametrize(("task", "usual"), [("detect", 800), ("segment", 512)])
def test_shapes_are_seen_at_the_size_they_are_drawn_at(task, usual):
    """Pictures of 64 pixels blown up to 800 would only take time and memory."""
    kind, settings = load_task(task), TrainSettings("paca_b0", "shapes", task=task, size=64)
    images = open_data("shapes", "train", size=(64, 64), count=2, targets=kind.targets)
    assert kind.from_settings(settings, images).short == 64
    assert kind.from_settings(replace(settings, short=(96,)), images).short == 96
    images.drawn_side = None  # as of files
    assert kind.from_settings(settings, images).short == usual


def test_scores_are_multiplied_with_those_of_the_detector():
    task = KeypointsTask(("person",), crop=(64, 48), names=("nose", "tail"))
    picture = Image.new("RGB", (100, 80))
    boxes = [Found((10, 10, 40, 50), 0, score) for score in (1.0, 0.5, 0.125)]
    view = task.evaluation_view(Preprocess((64, 64)))
    pixels, targets = task.collate([view(picture, question) for question in task.blank_targets(picture, boxes)])
    heatmaps = torch.rand(1, 2, 16, 12, generator=torch.Generator().manual_seed(0)).expand(3, -1, -1, -1)
    sure, half, eighth = task.predict(lambda images: heatmaps, pixels, targets)
    assert float(sure["scores"]) == pytest.approx(float(sure["keypoints"][:, 2].mean()))
    assert float(half["scores"]) == float(sure["scores"]) / 2
    assert float(eighth["scores"]) == float(sure["scores"]) / 8
    assert torch.equal(half["keypoints"], sure["keypoints"])
