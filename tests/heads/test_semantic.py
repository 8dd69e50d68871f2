import pytest
import torch

from vitreous import record
from vitreous.errors import InputError
from vitreous.heads.semantic import PaCaHead, pixel_loss

CHANNELS = (8, 12, 16, 20)


def pyramid(batch: int = 2, height: int = 70, width: int = 99) -> list[torch.Tensor]:
    sizes = [(-(-height // stride), -(-width // stride)) for stride in (4, 8, 16, 32)]
    return [torch.randn(batch, channel, *size) for channel, size in zip(CHANNELS, sizes, strict=True)]


def test_taps_sum_to_one_and_change_nothing() -> None:
    head = PaCaHead(CHANNELS, 5, width=16).eval()
    maps_in = pyramid()
    with torch.no_grad():
        plain = head(maps_in)
        with record(head) as maps:
            recorded = head(maps_in)
    torch.testing.assert_close(plain.logits, recorded.logits, rtol=1e-5, atol=1e-6)
    assert maps["clusters"].shape == maps["attention"].shape == plain.logits.shape == (2, 5, 18, 25)
    torch.testing.assert_close(maps["clusters"].sum((2, 3)), torch.ones(2, 5))
    torch.testing.assert_close(maps["attention"].sum(1), torch.ones(2, 18, 25))


def test_every_parameter_learns() -> None:
    head = PaCaHead(CHANNELS, 5, width=16).train()
    labels = torch.randint(0, 5, (2, 70, 99))
    sum(pixel_loss(logits, labels) for logits in head(pyramid())).backward()
    assert all(p.grad is not None for p in head.parameters())


def test_size_is_the_published_one() -> None:
    head = PaCaHead((96, 192, 320, 384), 150)
    assert sum(p.numel() for p in head.parameters()) / 1e6 == pytest.approx(1.45, abs=0.005)
    base = PaCaHead((96, 192, 384, 512), 150)
    assert sum(p.numel() for p in base.parameters()) / 1e6 == pytest.approx(1.50, abs=0.005)


def test_ignored_pixels_do_not_count_and_none_left_is_no_nan() -> None:
    logits = torch.randn(1, 3, 4, 4)
    labels = torch.zeros(1, 4, 4, dtype=torch.long)
    half = labels.clone()
    half[:, :2] = 255
    by_hand = -logits.log_softmax(1)[0, 0]
    torch.testing.assert_close(pixel_loss(logits, labels), by_hand.mean())
    torch.testing.assert_close(pixel_loss(logits, half), by_hand[2:].mean())
    assert pixel_loss(logits, torch.full_like(labels, 255)) == 0


def test_two_classes_and_one_image_are_enough_to_train() -> None:
    """The norms of the two cluster tokens have two values a channel then, which is as few as there can be."""
    head = PaCaHead(CHANNELS, 2, width=16).train()
    labels = torch.randint(0, 2, (1, 70, 99))
    sum(pixel_loss(logits, labels) for logits in head(pyramid(batch=1))).backward()
    assert all(torch.isfinite(p.grad).all() for p in head.parameters())


@pytest.mark.parametrize("classes", [0, 1])
def test_a_single_class_is_refused(classes: int) -> None:
    with pytest.raises(InputError, match="at least 2 are needed: count the background"):
        PaCaHead(CHANNELS, classes)


def test_bad_arguments() -> None:
    with pytest.raises(InputError, match="a head needs at least 1 of each"):
        PaCaHead(CHANNELS, 3, width=0)
    with pytest.raises(InputError, match="a head needs at least 1 of each"):
        PaCaHead((), 3)
