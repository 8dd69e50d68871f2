"""Charts show what they were given: curves, confusion matrices and reliability diagrams."""

import math

import numpy as np
import pytest

from vitreous.metrics.accuracy import ReliabilityBin
from vitreous.reports.chart import COLOURS, Chart, LegendEntry, Series
from vitreous.reports.figure import (
    FAINT_OPACITY,
    GAP_COLOUR,
    confusion_picture,
    draw_chart,
    draw_curves,
    matrix_rows,
    new_figure,
    reliability_picture,
)

BLUE, ORANGE = COLOURS[:2]


def drawn(chart: Chart):
    """The axes with a chart on them; their lines know their points."""
    axes = new_figure(800, 500, head=0).subplots()
    draw_chart(axes, chart)
    return axes


def share_of(image, colour: str) -> float:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return (np.asarray(image) == wanted).all(-1).mean()


def test_curves_are_where_their_values_are_on_the_axes_of_the_chart():
    points = tuple((float(x), math.sin(x / 10)) for x in range(100))
    chart = Chart("wave", "x", (Series("a", points, BLUE),), "%")
    axes = drawn(chart)
    (line,) = axes.lines
    assert line.get_xydata().tolist() == [list(point) for point in points]
    assert line.get_color() == BLUE
    assert axes.get_ylim() == (chart.y_axis().low, chart.y_axis().high)
    assert [label.get_text() for label in axes.get_yticklabels()] == [label for _, label in chart.y_axis().ticks]


def test_gaps_are_empty_and_single_points_are_seen():
    points = [(float(x), 1.0) for x in range(60)]
    points[20:30] = [(x, math.nan) for x, _ in points[20:30]]
    lonely = (40.0, 2.0)
    axes = drawn(Chart("gap", "x", (Series("a", tuple(points), BLUE), Series("b", (lonely,), ORANGE))))
    curves = [line for line in axes.lines if line.get_color() == BLUE]
    assert [(line.get_xdata()[0], line.get_xdata()[-1]) for line in curves] == [(0, 19), (30, 59)]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [line.get_xydata().tolist() for line in dots] == [[list(lonely)]]


def test_dashed_and_faint_curves_differ_from_plain_ones():
    flat = tuple((float(x), 1.0) for x in range(50))
    curves = Series("a", flat, BLUE), Series("b", flat, BLUE, dashed=True), Series("c", flat, BLUE, faint=True)
    faint, plain, dashed = drawn(Chart("a", "x", curves)).lines  # the faint one lies behind
    assert (faint.get_alpha(), plain.get_alpha()) == (FAINT_OPACITY, 1.0)
    assert dashed.is_dashed()
    assert not plain.is_dashed()


def test_every_chart_is_in_the_picture():
    charts = [Chart(str(i), "x", (Series("a", ((0.0, 0.0), (10.0, float(i + 1))), BLUE),)) for i in range(3)]
    one, three = draw_curves(charts[:1], heading="one"), draw_curves(charts, heading="three")
    assert three.width == 2 * one.width
    quarters = [three.crop((x, y, x + one.width, y + three.height // 2)) for x, y in corners(three)]
    assert [share_of(quarter, BLUE) > 0.001 for quarter in quarters] == [True, True, True, False]


def corners(image) -> list[tuple[int, int]]:
    return [(x, y) for y in (0, image.height // 2) for x in (0, image.width // 2)]


def test_many_and_long_names_in_the_legend_push_the_charts_down():
    chart = Chart("a", "x", (Series("a", ((0.0, 1.0), (1.0, 2.0)), BLUE),))
    short = draw_curves([chart], heading="a", legend=[LegendEntry("a", BLUE)])
    tall = draw_curves(
        [chart], heading="a", legend=[LegendEntry(f"a run with a long name {i}" * 9, BLUE) for i in range(9)]
    )
    assert tall.width == short.width
    assert tall.height > short.height + 200


def test_equal_charts_give_equal_pixels():
    chart = Chart("a", "x", (Series("a", ((0.0, 1.0), (1.0, 2.0)), BLUE),))
    assert draw_curves([chart], heading="a").tobytes() == draw_curves([chart], heading="a").tobytes()


def test_a_chart_without_a_number_can_be_drawn():
    assert draw_curves([Chart("a", "x", (Series("a", ((1.0, math.nan),), BLUE),))], heading="nothing").width > 700


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
