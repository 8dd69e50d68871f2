import math

import numpy as np

from vitreous.reports.chart import COLOURS, Chart, Series
from vitreous.reports.curves import FAINT_OPACITY, LegendEntry, draw_chart, draw_curves
from vitreous.reports.figure import new_figure

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
