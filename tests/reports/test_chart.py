import math

import pytest

from vitreous.reports.chart import COLOURS, Series, axis, nice_step, thin, tick_label

NAN = math.nan


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([0.1, 2.3], ""),
        ([97.0, 99.9], "%"),
        ([3.0], ""),
        ([0.0, 0.0], ""),
        ([-4.0, 7.0], ""),
        ([1e-9, 2e-9], ""),
        ([], ""),
    ],
)
def test_an_axis_holds_its_values_and_some_ticks(values, unit):
    found = axis(values, pad=0.05, unit=unit)
    assert all(0 <= found.share(value) <= 1 for value in values)
    assert all(-1e-9 <= found.share(value) <= 1 + 1e-9 for value, _ in found.ticks)
    assert 3 <= len(found.ticks) <= 8
    assert len({label for _, label in found.ticks}) == len(found.ticks), "labels must tell the ticks apart"
    assert all(label.endswith(unit) for _, label in found.ticks)


def test_an_axis_starts_at_zero_when_that_costs_little_and_ends_at_a_hundred_per_cent():
    assert axis([1.0, 10.0], pad=0.05).low == 0
    assert axis([9.0, 10.0], pad=0.05).low > 8
    assert axis([20.0, 99.9], pad=0.05, unit="%").high == 100


@pytest.mark.parametrize(("span", "step"), [(7, 1), (8, 2), (20, 5), (60, 10), (0.6, 0.1)])
def test_steps_are_round(span, step):
    assert nice_step(span) == pytest.approx(step)


def test_numbers_are_short():
    texts = [
        tick_label(0.25, 0.05),
        tick_label(12000, 2000),
        tick_label(3e-5, 1e-5),
        tick_label(2e6, 1e6),
        tick_label(1e-20, 0.5),
    ]
    assert texts == ["0.25", "12k", "3e-05", "2M", "0"]


def test_gaps_cut_a_curve():
    series = Series("a", ((0, 1.0), (1, NAN), (2, 3.0), (3, 4.0), (4, math.inf)))
    assert series.pieces() == [[(0, 1.0)], [(2, 3.0), (3, 4.0)]]
    assert Series("a", ((0, NAN),)).pieces() == []


def test_short_curves_and_lonely_points_are_dotted():
    long = [(float(x), 1.0) for x in range(50)]
    assert Series("a", tuple(long)).dots() == []
    assert len(Series("a", tuple(long[:5])).dots()) == 5
    long[1] = (1.0, NAN)
    assert Series("a", tuple(long)).dots() == [(0.0, 1.0)]


def test_thinning_keeps_ends_extremes_and_gaps():
    points = [(float(x), math.sin(x / 500)) for x in range(100_000)]
    points[50_000] = (50_000.0, 9.0)
    points[60_000:60_800] = [(x, NAN) for x, _ in points[60_000:60_800]]
    kept = thin(points)
    assert len(kept) <= 1000
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert (50_000.0, 9.0) in kept
    assert any(math.isnan(y) for _, y in kept)
    assert kept == sorted(kept, key=lambda point: point[0])
    assert thin(points[:1000]) is not kept
    assert thin(points[:1000]) == points[:1000]


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colour", COLOURS)
def test_colours_stand_out_on_light_and_dark(colour):
    """3 to 1 is what the web's accessibility rules ask of lines."""
    assert (luminance("#ffffff") + 0.05) / (luminance(colour) + 0.05) >= 3
    assert (luminance(colour) + 0.05) / (luminance("#1d1b26") + 0.05) >= 3
