import numpy as np
import pytest
import torch

from vitreous.data.mixup import Mixup
from vitreous.errors import InputError


@pytest.mark.parametrize("mixup", [Mixup(0.8, 0.0), Mixup(0.0, 1.0), Mixup(0.8, 1.0, 0.5)])
@pytest.mark.parametrize("batch", [4, 5])
def test_labels_say_how_much_of_each_image_is_left(mixup, batch):
    """Image i is constant i, so the mean of a mixed image reveals the shares of its two parents."""
    numbers = torch.arange(batch, dtype=torch.float32)
    images = numbers.view(-1, 1, 1, 1).expand(batch, 3, 16, 16).contiguous()
    for seed in range(20):
        mixed = mixup(images, torch.arange(batch), batch, np.random.default_rng(seed))
        assert torch.allclose(mixed.labels.sum(1), torch.ones(batch))
        assert torch.allclose(mixed.labels @ numbers, mixed.images.mean((1, 2, 3)), atol=1e-4)
    assert torch.equal(images.mean((1, 2, 3)), numbers), "the input must stay as it was"


def test_same_key_same_batch():
    images, labels = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 1])
    first, second = (Mixup(0.8, 1.0)(images, labels, 3, np.random.default_rng(7)) for _ in range(2))
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.labels, second.labels)


def test_wrong_settings_are_refused():
    with pytest.raises(InputError, match="switch 2"):
        Mixup(switch=2)
    with pytest.raises(InputError, match="mixup -1"):
        Mixup(mixup=-1)
