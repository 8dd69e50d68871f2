import math
from itertools import pairwise

from vitreous.charts.chart import COLOURS, Chart, Series
from vitreous.charts.raster import Key, dashes, faded, frame, panel_top, picture

BLUE, ORANGE = COLOURS[:2]


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def pixel(image, chart: Chart, x: float, y: float, *, index: int = 0, columns: int = 1) -> tuple[int, ...]:
    """The colour where a point of the chart should be, without a legend above."""
    across, down = frame(chart, index, columns=columns, top=panel_top([])).at(x, y)
    return image.getpixel((round(across - 0.5), round(down - 0.5)))


def test_curves_are_where_their_values_are():
    points = tuple((float(x), math.sin(x / 10)) for x in range(100))
    chart = Chart("wave", "x", (Series("a", points, BLUE),))
    image = picture([chart], heading="one")
    for x, y in points[5:95:10]:
        assert pixel(image, chart, x, y) == rgb(BLUE)
        assert pixel(image, chart, x, y + 0.3 if y < 0.5 else y - 0.3) != rgb(BLUE)


def test_every_chart_of_a_sheet_is_in_its_place():
    charts = [Chart(str(i), "x", (Series("a", ((0.0, 0.0), (10.0, float(i + 1))), BLUE),)) for i in range(3)]
    image = picture(charts, heading="three")
    for index, chart in enumerate(charts):
        assert pixel(image, chart, 5.0, (index + 1) / 2, index=index, columns=2) == rgb(BLUE)


def test_gaps_are_empty_and_single_points_are_seen():
    points = [(float(x), 1.0) for x in range(60)]
    points[20:30] = [(x, math.nan) for x, _ in points[20:30]]
    lonely = (40.0, 2.0)
    chart = Chart("gap", "x", (Series("a", tuple(points), BLUE), Series("b", (lonely,), ORANGE)))
    image = picture([chart], heading="gap")
    assert pixel(image, chart, 10, 1.0) == rgb(BLUE)
    assert pixel(image, chart, 25, 1.0) != rgb(BLUE)
    assert pixel(image, chart, *lonely) == rgb(ORANGE)


def test_dashes_cover_their_share_of_a_line():
    strokes = list(dashes([(0.0, 0.0), (3.0, 4.0), (3.0, 104.0)], 12, 8))
    inked = sum(math.dist(a, b) for stroke in strokes for a, b in pairwise(stroke))
    assert inked == 5 * 12 + 5  # 105 long: five dashes and spaces, and the rest of 5
    assert strokes[0][1] == (3.0, 4.0), "a dash follows the corner"


def test_dashed_and_faint_curves_differ_from_plain_ones():
    flat = tuple((float(x), 1.0) for x in range(50))
    chart = Chart("a", "x", (Series("a", flat, BLUE, dashed=True),))
    image = picture([chart], heading="a")
    row = [pixel(image, chart, x / 10, 1.0) == rgb(BLUE) for x in range(490)]
    assert 0.5 < sum(row) / len(row) < 0.7  # 12 of 20
    faint = Chart("a", "x", (Series("a", flat, BLUE, faint=True),))
    assert pixel(picture([faint], heading="a"), faint, 25, 1.0) == rgb(faded(BLUE))


def test_many_and_long_names_in_the_legend_push_the_charts_down():
    chart = Chart("a", "x", (Series("a", ((0.0, 1.0), (1.0, 2.0)), BLUE),))
    short = picture([chart], heading="a", legend=[Key("a", BLUE)])
    tall = picture([chart], heading="a", legend=[Key(f"a run with a long name {i}" * 9, BLUE) for i in range(9)])
    assert tall.width == short.width
    assert tall.height > short.height + 200


def test_a_chart_without_a_number_can_be_drawn():
    assert picture([Chart("a", "x", (Series("a", ((1.0, math.nan),), BLUE),))], heading="nothing").width > 700
