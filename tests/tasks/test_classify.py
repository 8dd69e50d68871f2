"""Learning from a teacher: the loss by hand, and images as the teacher would have seen them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from vitreous.data.mixup import Mixup
from vitreous.data.regions import named_regions
from vitreous.data.transforms import Preprocess, to_bytes
from vitreous.tasks.classify import ClassifyTask, Distillation, Teacher

OURS = Preprocess((8, 8))
THEIRS = Preprocess((8, 8), mean=(0.5, 0.5, 0.5), std=(0.25, 0.5, 1.0))
CLASSES = ("a", "b", "c")


class Colours(nn.Module):
    """Logits are the mean colours; keeps what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, images: Tensor) -> Tensor:
        self.seen = images
        return self.scale * images.mean((2, 3))


def teacher(preprocess: Preprocess = OURS, columns: tuple[int, ...] = (0, 1, 2), **options) -> Teacher:
    return Teacher(Colours(), preprocess, OURS, columns, **options)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def test_hard_distillation_is_half_labels_and_half_the_teachers_choice():
    images, pupil = torch.randn(6, 3, 8, 8), nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    task = ClassifyTask(CLASSES, label_smoothing=0.1, mixup=Mixup(mixup=0.8), distillation=Distillation(teacher()))
    images, targets = task.augment_batch(images, {"labels": torch.tensor([0, 1, 2, 0, 1, 2])}, np.random.default_rng(0))
    losses = task.losses(pupil, images, targets)

    logs = log_softmax(pupil(images).detach().double().numpy())
    labels = targets["labels"].double().numpy() * 0.9 + 0.1 / 3
    chosen = images.mean((2, 3)).argmax(1).numpy()  # the teacher's decision on the same mixed images
    assert losses["cross_entropy"].item() == pytest.approx(-0.5 * (labels * logs).sum(1).mean(), rel=1e-5)
    assert losses["distillation"].item() == pytest.approx(-0.5 * logs[np.arange(6), chosen].mean(), rel=1e-5)


@pytest.mark.parametrize("warm", [1.0, 3.0])
def test_soft_distillation_is_the_divergence_at_a_temperature(warm):
    images, logits = torch.randn(5, 3, 8, 8), torch.randn(5, 3)
    found = Distillation(teacher(), "soft", 0.3, warm).loss(logits, images)
    told = log_softmax(3 * images.mean((2, 3)).double().numpy() / warm)
    said = log_softmax(logits.double().numpy() / warm)
    assert found.item() == pytest.approx(warm**2 * (np.exp(told) * (told - said)).sum(1).mean(), rel=1e-4)


def test_weight_shares_the_loss_between_labels_and_teacher():
    images, targets, pupil = torch.randn(4, 3, 8, 8), {"labels": torch.tensor([0, 1, 2, 0])}, Colours()
    plain = ClassifyTask(CLASSES).losses(pupil, images, targets)["cross_entropy"]
    task = ClassifyTask(CLASSES, distillation=Distillation(teacher(), weight=0.2))
    losses = task.losses(pupil, images, targets)
    assert torch.allclose(losses["cross_entropy"], 0.8 * plain)
    assert torch.allclose(losses["distillation"], 0.2 * task.distillation.loss(pupil(images), images))


def test_the_teacher_sees_what_its_own_preprocessing_would_have_shown():
    pixels = torch.rand(2, 3, 8, 8)
    translated = teacher(THEIRS).translate(OURS.normalise(pixels))
    assert torch.allclose(translated, THEIRS.normalise(pixels), atol=1e-5)  # rounding of the way there and back
    same = OURS.normalise(pixels)
    assert teacher().translate(same) is same


def test_a_mended_teacher_does_not_see_what_is_hidden_from_it():
    for theirs in (OURS, THEIRS):
        hidden = replace(theirs, hidden=named_regions("upper left"))
        asked, images = teacher(hidden), torch.rand(2, 3, 8, 8)
        marked = images.clone()
        marked[:, :, :2, :2] = 1
        one, other = (asked.translate(OURS.normalise(pixels)) for pixels in (images, marked))
        assert torch.equal(one, other)
        plain = teacher(theirs).translate(OURS.normalise(images))
        assert torch.allclose(one[:, :, 2:], plain[:, :, 2:], atol=1e-5)  # the rest stays
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8))
    shown = Preprocess((8, 8), hidden=named_regions("upper left"))
    seen = teacher(shown).translate(OURS.normalise_bytes(to_bytes(picture)[None]))
    assert torch.allclose(seen[0], shown(picture), atol=0.5 / 255 / min(shown.std) + 1e-5)  # it rounds to bytes


def test_a_teacher_of_one_size_gets_it():
    large = Preprocess((16, 12))
    asked = teacher(large, resized=True)
    asked(torch.randn(2, 3, 8, 8))
    assert asked.model.seen.shape == (2, 3, 16, 12)
    flat = torch.full((1, 3, 8, 8), 0.25)
    assert torch.allclose(asked.translate(flat), torch.full((1, 3, 16, 12), 0.25))


def test_classes_in_another_order_are_matched():
    images = torch.randn(3, 3, 8, 8)
    assert torch.equal(teacher(columns=(2, 0, 1))(images), teacher()(images)[:, [2, 0, 1]])


def test_the_teacher_learns_nothing_and_drops_nothing():
    model = nn.Sequential(nn.Dropout(0.5), Colours()).train()
    asked = Teacher(model, OURS, OURS, (0, 1, 2))
    logits = asked(torch.randn(2, 3, 8, 8, requires_grad=True))
    assert not logits.requires_grad
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
