"""Linear imputation solves its equations, and is what pytorch-grad-cam's ROAD solves."""

import torch

from vitreous.faithfulness.imputation import impute

RANDOM = torch.Generator().manual_seed(0)
IMAGES = torch.randn(2, 3, 12, 16, generator=RANDOM)
KEEP = (torch.rand(2, 1, 12, 16, generator=RANDOM) < 0.4).float()


def test_every_hidden_pixel_is_the_mean_of_its_neighbours():
    found = impute(IMAGES, KEEP, noise=0, precision=1e-6)
    for b, y, x in (KEEP[:, 0] == 0).nonzero().tolist()[::7]:
        total = weight = 0.0
        for down in (-1, 0, 1):
            for across in (-1, 0, 1):
                inside = 0 <= y + down < 12 and 0 <= x + across < 16
                if inside and (down or across):
                    share = 1 if down and across else 2
                    total, weight = total + share * found[b, :, y + down, x + across], weight + share
        torch.testing.assert_close(found[b, :, y, x], total / weight, atol=1e-4, rtol=1e-4)
    assert torch.equal(torch.where(KEEP > 0, found, 0), torch.where(KEEP > 0, IMAGES, 0))


def test_copies_are_independent_and_one_without_pixels_is_its_mean():
    both = impute(IMAGES, KEEP)
    torch.testing.assert_close(both[1:], impute(IMAGES[1:], KEEP[1:]), atol=1e-5, rtol=1e-5)
    empty = impute(IMAGES, torch.zeros_like(KEEP), noise=0)
    torch.testing.assert_close(empty, IMAGES.mean((2, 3), keepdim=True).expand_as(IMAGES), atol=1e-5, rtol=1e-5)
