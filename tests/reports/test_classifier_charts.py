"""Confusion matrices and reliability diagrams show what they were given."""

import numpy as np
import pytest

from vitreous.metrics.accuracy import ReliabilityBin
from vitreous.reports.chart import COLOURS
from vitreous.reports.classifier_charts import GAP_COLOUR, confusion_picture, matrix_rows, reliability_picture


def share_of(image, colour: str) -> float:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return (np.asarray(image) == wanted).all(-1).mean()


@pytest.mark.parametrize("classes", [1, 2, 10, 20, 50, 200, 1000])
def test_diagonal_of_a_perfect_model_is_dark_and_the_rest_white(classes):
    counts = np.eye(classes, dtype=int) * 7
    image = confusion_picture(counts, [f"class {i}" for i in range(classes)], heading="perfect")
    pixels = np.asarray(image).astype(int)[:-70]  # without the scale, which has the same colours
    dark = (pixels == pixels.reshape(-1, 3)[pixels.sum(-1).argmin()]).all(-1)
    rows, columns = np.nonzero(dark)
    assert np.ptp(rows) == np.ptp(columns), "the matrix is square"
    cell = (np.ptp(rows) + 1) / classes
    assert ((rows - rows.min()) // cell == (columns - columns.min()) // cell).all(), "nothing beside the diagonal"
    assert max(image.size) < 1500


def test_rare_mistakes_can_be_seen():
    counts = np.eye(1000, dtype=int) * 49
    before = np.asarray(confusion_picture(counts, ["x"] * 1000, heading="a")).astype(int)
    counts[3, 900] = 1
    after = np.asarray(confusion_picture(counts, ["x"] * 1000, heading="a")).astype(int)
    changed = np.abs(before - after).sum(-1)
    assert (changed > 100).sum() == 1, "one pixel, and it stands out"


def test_more_classes_than_pixels_share_them():
    assert matrix_rows(10) == 10
    assert matrix_rows(21_841) == 1000
    image = confusion_picture(np.eye(1000, dtype=int), ["x"] * 21_841, heading="many")
    assert image.width < 1500


def test_long_names_are_cut():
    counts = np.eye(3, dtype=int)
    assert confusion_picture(counts, ["x" * 500, "y", "z"], heading="h" * 20).width < 900


def bins(accuracy: float, confidence: float) -> list[ReliabilityBin]:
    place = min(14, int(confidence * 15))
    empty = [ReliabilityBin(b / 15, (b + 1) / 15, 0, None, None) for b in range(15)]
    empty[place] = ReliabilityBin(place / 15, (place + 1) / 15, 50, confidence, accuracy)
    return empty


def test_height_of_bars_is_the_accuracy_and_a_gap_is_shown():
    low, high = (reliability_picture(bins(a, a), heading="x") for a in (0.42, 0.84))
    assert share_of(high, COLOURS[0]) == pytest.approx(2 * share_of(low, COLOURS[0]), rel=0.03)  # the legend's square
    unsure, sure = (reliability_picture(bins(a, c), heading="x") for a, c in ((0.9, 0.5), (0.5, 0.9)))
    assert share_of(unsure, GAP_COLOUR) == pytest.approx(share_of(sure, GAP_COLOUR), rel=0.1)
    assert share_of(sure, GAP_COLOUR) > 3 * share_of(high, GAP_COLOUR), "without a gap, only the legend has its colour"


@pytest.mark.parametrize("name", ["5$ or 10$", r"\frac{", "\x1b[31mred", "猫", "a_b^c"])
def test_names_are_drawn_as_they_are(name, recwarn):
    """No formula, no escape, no warning about a script that the font does not have."""
    image = confusion_picture(np.eye(2, dtype=int), [name, "other"], heading=name)
    assert image.width > 500
    assert not recwarn.list


def test_numbers_stand_in_the_cells():
    """The same shares with other counts look different."""
    some, more = (confusion_picture(np.eye(5, dtype=int) * n, list("abcde"), heading="x") for n in (7, 8))
    cells = np.abs(np.asarray(some).astype(int) - np.asarray(more)).sum(-1) > 0
    assert cells.sum() > 5 * 20
