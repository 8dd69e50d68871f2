"""Repeated augmentation and padded crops: views that some recipes ask for."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.random_samples import Noise, batches, flat
from vitreous.data.loader import BatchSampler
from vitreous.data.transforms import Augmentation, Preprocess


def test_each_sample_comes_several_times_in_a_row_and_looks_different_each_time():
    found = batches(repeats=3)
    drawn = [index for batch in found for index in batch.indices]
    assert drawn == [index for index in drawn[::3] for _ in range(3)][: len(drawn)]
    assert len(set(drawn)) == 8 == -(-len(Noise()) // 3)  # as many views in an epoch, of fewer samples
    assert len(drawn) == sum(len(batch.indices) for batch in batches()) == len(Noise())
    views = flat(found)[:, :3]
    assert len(torch.unique(views, dim=0)) == len(views)


def test_other_samples_in_other_epochs():
    assert {batch.indices for batch in batches(repeats=3)} != {batch.indices for batch in batches(repeats=3, epoch=4)}


@pytest.mark.parametrize("options", [dict(workers=2), dict(pieces=3), dict(start=2)])
def test_repetitions_depend_on_seed_epoch_and_place_only(options):
    expected = flat(batches(repeats=3))[4 * options.get("start", 0) :]
    assert torch.equal(flat(batches(repeats=3, **options)), expected)


def test_ranks_share_the_repetitions():
    whole = batches(repeats=3)
    ranks = [batches(repeats=3, rank=rank, world=2) for rank in range(2)]
    for batch, *shares in zip(whole, *ranks, strict=True):
        together, expected = ({tuple(row) for row in flat(part).tolist()} for part in (shares, [batch]))
        assert together == expected  # each image once; which process has which is the sampler's own affair
        assert sum(len(share.indices) for share in shares) == len(batch.indices)


def test_without_repetitions_nothing_is_repeated():
    assert {draw.repeat for batch in BatchSampler(10, 3, shuffle=True) for draw in batch} == {0}


def test_padding_moves_whole_pictures_and_adds_black():
    pixels = np.random.default_rng(0).integers(1, 255, (8, 8, 3), dtype=np.uint8)
    view = Augmentation(Preprocess((8, 8)), scale=1.0, pad=2, flip=0.0)
    framed = torch.zeros(3, 12, 12, dtype=torch.uint8)
    framed[:, 2:10, 2:10] = torch.from_numpy(pixels).permute(2, 0, 1)
    places = set()
    for seed in range(60):
        random.seed(seed)
        seen = view(Image.fromarray(pixels))
        fits = [(y, x) for y in range(5) for x in range(5) if torch.equal(framed[:, y : y + 8, x : x + 8], seen)]
        assert len(fits) == 1
        places |= set(fits)
    assert len(places) > 15  # of 25
