"""Weights of classes: what they are, and what they do to the loss."""

import pytest
import torch

from tests.support.tiny_data import picture
from vitreous.data.class_weights import class_weights
from vitreous.data.source import open_data
from vitreous.errors import InputError
from vitreous.tasks.classify import ClassifyTask


@pytest.fixture
def images(tmp_path):
    for number in range(8):
        picture(tmp_path / "train" / ("ant" if number < 6 else "bee") / f"{number}.png", seed=number)
    return open_data(str(tmp_path), "train", size=(8, 8))


def test_rare_classes_weigh_more_and_the_mean_is_one(images):
    assert class_weights(images, ()) == ()
    assert class_weights(images, ("balanced",)) == pytest.approx((8 / 2 / 6, 8 / 2 / 2))
    ant, bee = class_weights(images, ("bee=3",))
    assert bee / ant == pytest.approx(3)
    assert (6 * ant + 2 * bee) / 8 == pytest.approx(1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("bea=2",), "unknown class 'bea'; nearest: bee"),
        (("bee=-1",), "--class-weights bee=-1 given; a weight is a number from 0"),
        (("bee=much",), "a weight is a number from 0"),
        (("even",), "accepted: balanced alone, or CLASS=WEIGHT for some classes"),
        (("ant=0", "bee=0"), "leaves no picture to learn from"),
    ],
)
def test_others_are_refused(images, given, says):
    with pytest.raises(InputError, match=says):
        class_weights(images, given)


def test_the_loss_is_the_weighted_mean_and_pieces_add_up():
    task = ClassifyTask(("ant", "bee"), weights=(0.5, 2.0))
    inputs, labels = torch.randn(6, 2), torch.tensor([0, 0, 1, 0, 1, 0])

    def loss(part: slice) -> torch.Tensor:
        return task.losses(lambda x: x, inputs[part], {"labels": labels[part]})["cross_entropy"]

    each = -inputs.log_softmax(1)[range(6), labels] * torch.tensor([0.5, 2.0])[labels]
    torch.testing.assert_close(loss(slice(6)), each.mean())
    torch.testing.assert_close((2 * loss(slice(2)) + 4 * loss(slice(2, 6))) / 6, loss(slice(6)))
