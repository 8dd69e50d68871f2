"""Each quantity where its answer is known."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from tests.support.families import ONE_OF_EACH, awake, small
from vitreous.data.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    corrupted,
    exchanged_places,
    gaussian_smoothed,
    moved,
    pulled,
)
from vitreous.investigations.blocks import block_maps, block_paths, block_places
from vitreous.investigations.clusters import ClusterFigures, drift_between
from vitreous.investigations.fourier import log_amplitude, profile
from vitreous.investigations.interaction import ORDERS, log_odds, patch_grid, relative, strengths
from vitreous.investigations.similarity import (
    as_query_rows,
    attention_rows,
    between_heads,
    between_queries,
    real_queries,
)

# ---- fourier -----------------------------------------------------------------------------------------------------


def test_white_noise_holds_all_frequencies_alike_and_a_blur_takes_the_high_ones() -> None:
    noise = torch.randn(8, 16, 16, 16, generator=torch.Generator().manual_seed(0))
    frequencies, flat = profile(log_amplitude(noise))
    assert frequencies[0] == 0
    assert frequencies[-1] == 1
    # The lowest is a real number and the others are complex: their mean logs differ by log(2) / 2 on white noise.
    assert flat[1:] == pytest.approx([math.log(2) / 2] * (len(flat) - 1), abs=0.1)
    blurred = F.avg_pool2d(F.pad(noise, (1, 1, 1, 1), mode="circular"), 3, 1)
    assert profile(log_amplitude(blurred))[1][-1] < -0.8
    torch.testing.assert_close(log_amplitude(nn.Identity()(noise)), log_amplitude(noise))


def test_a_wave_is_found_at_its_frequency() -> None:
    wave = torch.cos(torch.arange(16) * math.pi / 2).expand(1, 1, 16, 16)  # half of the highest frequency
    spectrum = log_amplitude(wave)
    row, column = divmod(int(spectrum.argmax()), 16)
    assert row == 8  # none from top to bottom
    assert abs(column - 8) == 4


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_family_has_maps_of_blocks(name: str) -> None:
    model = awake(small(name, 1)).eval()
    images = torch.randn(2, 3, 64, 64)
    places = block_places(model, images)
    maps = block_maps(model, images, places)
    assert {place.path for place in places} == block_paths(model)
    assert all(found.ndim == 4 and len(found) == 2 for found in maps.values())


# ---- interaction -------------------------------------------------------------------------------------------------


class Additive(nn.Module):
    """Log-odds of the first class are a sum over pixels: patches do not interact."""

    def forward(self, images: Tensor) -> Tensor:
        total = images.sum((1, 2, 3))
        return torch.stack([total, torch.zeros_like(total)], 1)


class Pairwise(nn.Module):
    """Every pair of pixels adds its product: the interaction of two patches does not depend on the others."""

    def forward(self, images: Tensor) -> Tensor:
        total = 0.01 * images.sum((1, 2, 3)).square()
        return torch.stack([total, torch.zeros_like(total)], 1)


def measured(model: nn.Module) -> Tensor:
    return strengths(model, torch.ones(3, 8, 8), 0, ORDERS, torch.Generator().manual_seed(0), 64)


def test_parts_that_add_up_have_no_interaction() -> None:
    assert measured(Additive()).abs().max() < 1e-4  # sums of float32
    assert not relative(torch.zeros(3, len(ORDERS))).any()


def test_products_interact_alike_at_every_order() -> None:
    found = measured(Pairwise())
    pixels = 3 * 64 / math.prod(patch_grid((8, 8)))  # of a patch
    torch.testing.assert_close(found, torch.full_like(found, 0.01 * 2 * pixels**2), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(relative(found[None]), torch.ones_like(found), rtol=1e-3, atol=1e-3)


def test_log_odds() -> None:
    logits = torch.randn(4, 7)
    share = logits.softmax(1)[:, 2]
    torch.testing.assert_close(log_odds(logits, torch.full((4,), 2)), (share / (1 - share)).log())


# ---- similarity and attention ------------------------------------------------------------------------------------


def test_equal_rows_are_alike_and_rows_that_share_no_key_are_not() -> None:
    row = torch.rand(1, 1, 1, 6).expand(2, 3, 5, 6)
    torch.testing.assert_close(between_queries(row), torch.ones(2))
    torch.testing.assert_close(between_heads(row), torch.ones(2))
    torch.testing.assert_close(between_queries(torch.eye(6).expand(2, 3, 6, 6)), torch.zeros(2))
    assert between_queries(row[:, :, :1]).isnan().all()


def test_similarity_is_the_mean_over_all_pairs() -> None:
    rows = torch.rand(1, 1, 4, 5)
    pairs = [F.cosine_similarity(rows[0, 0, i], rows[0, 0, j], 0) for i in range(4) for j in range(4) if i != j]
    torch.testing.assert_close(between_queries(rows)[0], torch.stack(pairs).mean())


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_rows_of_attention_sum_to_one_and_cosines_are_at_most_one(name: str) -> None:
    model = awake(small(name, 1)).eval()
    for layer, rows in attention_rows(model, torch.randn(2, 3, 64, 64)).items():
        assert rows.ndim == (6 if layer.endswith("local_attention.map") else 4), layer
        if layer.startswith("class_blocks"):  # which also reads itself
            assert (rows.sum(-1) < 1).all()
        elif not layer.endswith(".mixed"):  # whose heads are mixed after the softmax
            total = rows.sum(-1)  # 0 of queries beyond the border of the map
            expected = (total > 0.5).to(total) if rows.ndim == 6 else torch.ones_like(total)
            torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4, msg=layer)
        for values in (between_queries(rows), between_heads(rows)):
            assert (values.isnan() | (values.abs() <= 1 + 1e-5)).all(), layer


def test_in_windows_queries_are_compared_with_those_of_their_window() -> None:
    """In one window all queries read alike; in the other each reads a key of its own."""
    alike = torch.rand(9, generator=torch.Generator().manual_seed(0)).expand(9, 9)
    seen = torch.stack([alike, torch.eye(9)], -1).view(1, 1, 9, 9, 1, 2)  # (B, h, queries, keys, H', W')
    torch.testing.assert_close(
        between_queries(as_query_rows("mixer.dynamic.local_attention.map", seen)), torch.tensor([0.5])
    )


def test_queries_beyond_the_border_are_not_compared() -> None:
    """A map of 2 x 2 cells lies in one window of 3 x 3, of which five cells do not exist."""
    real = real_queries((8, 8), 4)[0, 0, :, 0]
    assert real.tolist() == [0, 0, 0, 0, 1, 1, 0, 1, 1]
    rows = torch.rand(1, 1, 1, 1, 9, 9) * real[:, None]
    four = rows[0, 0, 0, 0, real.bool()][None, None]
    torch.testing.assert_close(between_queries(rows), between_queries(four))


# ---- clusters ----------------------------------------------------------------------------------------------------


def test_clusters_that_are_copies_overlap_and_only_one_is_used() -> None:
    figures = ClusterFigures()
    one = torch.rand(1, 1, 4, 4)
    figures.add((one / one.sum()).expand(2, 3, 4, 4))
    row = figures.row()
    assert row["clusters"] == 3
    assert row["used_ever"] == 1
    assert row["overlap"] == pytest.approx(1, abs=1e-4)


def test_clusters_of_one_position_each_are_all_used_and_have_no_entropy() -> None:
    figures = ClusterFigures()
    figures.add(torch.eye(4).view(1, 4, 2, 2))
    row = figures.row()
    assert row["used_per_picture"] == 4
    assert row["entropy"] == 0


def test_drift() -> None:
    maps = torch.rand(2, 3, 4, 4)
    torch.testing.assert_close(drift_between(maps, maps), torch.zeros(2))
    apart = torch.eye(4).view(1, 4, 2, 2)
    torch.testing.assert_close(drift_between(apart, apart.flip(1)), torch.ones(1))


# ---- corruptions -------------------------------------------------------------------------------------------------


# Strengths that do more than those after them, as published: two short moves before one long, pulls before ruffles.
OF_ANOTHER_KIND = {"glass_blur": 1, "elastic_transform": 2}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corruptions_grow_with_severity_and_are_the_same_again(kind: str) -> None:
    random = np.random.default_rng(0)
    coarse = Image.fromarray(random.integers(0, 255, (12, 12, 3), dtype=np.uint8))
    picture = coarse.resize((96, 96), Image.Resampling.BICUBIC)
    before = np.asarray(picture, float)
    gaps = [np.abs(np.asarray(corrupted(picture, kind, severity), float) - before).mean() for severity in SEVERITIES]
    assert min(gaps) > 0
    growing = gaps[OF_ANOTHER_KIND.get(kind, 0) :]
    assert growing == sorted(growing)
    assert corrupted(picture, kind, 3, seed=5).tobytes() == corrupted(picture, kind, 3, seed=5).tobytes()


def test_pixels_behind_glass_change_places_one_pair_after_the_other() -> None:
    """The same random numbers, and every pair in turn."""
    height, width, reach, rounds = 11, 14, 1.6, 2
    found = exchanged_places(height, width, reach, rounds, np.random.default_rng(3))
    random, step = np.random.default_rng(3), 5
    wanted = np.arange(height * width).reshape(height, width)
    for top, left in [(top, left) for _ in range(rounds) for top in range(step) for left in range(step)]:
        rows, columns = range(top, height, step), range(left, width, step)
        down, across = np.floor(random.uniform(-reach, reach + 1, (2, len(rows), len(columns)))).astype(int)
        for (a, i), (b, j) in itertools.product(enumerate(rows), enumerate(columns)):
            other = min(max(i + down[a, b], 0), height - 1), min(max(j + across[a, b], 0), width - 1)
            wanted[i, j], wanted[other] = wanted[other], wanted[i, j]
    assert (found == wanted).all()
    assert sorted(found.ravel()) == list(range(height * width)), "a pixel was lost"
    assert (exchanged_places(height, width, 0, 1, random).ravel() == np.arange(height * width)).all()


def test_smoothing_weakens_each_wave_by_a_gaussian_of_its_frequency() -> None:
    i, j = np.mgrid[:9, :14] + 0.5
    wave = np.cos(np.pi * 2 * i / 9) * np.cos(np.pi * 3 * j / 14)
    kept = np.exp(-0.5 * (2 * np.pi / 9 * 1.7) ** 2) * np.exp(-0.5 * (3 * np.pi / 14 * 1.7) ** 2)
    np.testing.assert_allclose(gaussian_smoothed(5 + wave, 1.7), 5 + kept * wave, atol=1e-12)


def test_three_points_pull_the_whole_picture() -> None:
    field = pulled(13, 19, np.array([3.0, -1.0, 2.0]))
    rows, columns = 6 + 13 / 3 * np.array([1, -1, -1]), 9 + 13 / 3 * np.array([1, 1, -1])
    di, dj = field[1, 0] - field[0, 0], field[0, 1] - field[0, 0]
    np.testing.assert_allclose(field[0, 0] + di * rows + dj * columns, [3, -1, 2])


def test_moved_pixels_come_from_where_the_field_points_and_from_a_mirror_beyond_the_edge() -> None:
    pixels = np.random.default_rng(0).random((6, 8, 3))
    mirrored = np.pad(pixels, [(3, 3), (3, 3), (0, 0)], mode="symmetric")
    found = moved(pixels, np.full((6, 8), 2.0), np.full((6, 8), -3.0))
    np.testing.assert_allclose(found, mirrored[5:11, 0:8], atol=1e-12)
    between = moved(pixels, np.zeros((6, 8)), np.full((6, 8), 0.25))
    np.testing.assert_allclose(between, 0.75 * pixels + 0.25 * mirrored[3:9, 4:12], atol=1e-12)
