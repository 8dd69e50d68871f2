"""What a chart of curves consists of before it is drawn: series, axes, ticks and the place of every point.

`figure.py` draws it as a picture and `curves_page.py` as a web page; both take every place from here.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

# Each stands out (contrast above 3 to 1) on white and on the dark background of the page; blue and orange come first,
# which people with any kind of colour blindness tell apart.
COLOURS = ("#2f7ed8", "#d9660a", "#c23ba6", "#1593a5", "#8c8318", "#8a63d2", "#d84343", "#1f9960")
MOST_DOTS = 20  # a curve of at most as many points marks each of them

CurvePoint = tuple[float, float]


class Series(NamedTuple):
    """One curve. A value that is not finite is a gap."""

    name: str
    points: tuple[CurvePoint, ...]
    colour: str = COLOURS[0]
    group: str = ""  # the entry of the legend it belongs to
    dashed: bool = False
    faint: bool = False  # the curve before smoothing: drawn behind, without dots or values

    def pieces(self) -> list[list[CurvePoint]]:
        """The points between the gaps."""
        pieces: list[list[CurvePoint]] = [[]]
        for point in self.points:
            if math.isfinite(point[1]):
                pieces[-1].append(point)
            elif pieces[-1]:
                pieces.append([])
        return [piece for piece in pieces if piece]

    def dots(self) -> list[CurvePoint]:
        """Points that are marked: all of a short curve, and those without neighbours, which no line shows."""
        if self.faint:
            return []
        few = len(self.points) <= MOST_DOTS
        return [point for piece in self.pieces() if few or len(piece) == 1 for point in piece]


class Axis(NamedTuple):
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]  # value and label

    def share(self, value: float) -> float:
        """Where a value lies between the ends of the axis, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)


class Chart(NamedTuple):
    title: str
    x_label: str
    series: tuple[Series, ...]
    unit: str = ""  # of the values: "" or "%"
    marked: tuple[int, ...] = ()  # the ticks, and so the ends, of the x axis; empty: chosen by the values
    ends: tuple[float, float] | None = None  # of the y axis, where charts beside each other must have the same
    names: tuple[str, ...] = ()  # of places 0, 1, … of an x axis that is no quantity

    def x_axis(self) -> Axis:
        if self.names:
            ends = (-0.4, len(self.names) - 0.6)
            return Axis(*ends, tuple((float(place), name) for place, name in enumerate(self.names)))
        values = [x for series in self.series for x, y in series.points if math.isfinite(y)]
        if len(set(self.marked)) > 1:
            return Axis(min(self.marked), max(self.marked), tuple((float(x), str(x)) for x in self.marked))
        return axis(values, pad=0.0)

    def y_axis(self) -> Axis:
        if self.ends is not None:
            return axis(self.ends, pad=0.0, unit=self.unit)
        values = [y for series in self.series for _, y in series.points if math.isfinite(y)]
        return axis(values, pad=0.05, unit=self.unit)


class LegendEntry(NamedTuple):
    name: str
    colour: str
    dashed: bool = False


def axis(values: Iterable[float], *, pad: float, unit: str = "") -> Axis:
    """An axis that holds all values, with a share of empty space at both ends and four to eight ticks.

    It starts at 0 when that costs little, and never passes 0 or 100 % for the sake of the empty space alone.
    """
    values = list(values) or [0.0, 1.0]
    lowest, highest = min(values), max(values)
    if highest - lowest <= 1e-12 * max(abs(lowest), abs(highest)):  # one value: put it in the middle
        margin = abs(highest) / 2 or 1.0
        lowest, highest = lowest - margin, highest + margin
    margin = pad * (highest - lowest)
    low, high = lowest - margin, highest + margin
    if lowest >= 0 and (low < 0 or lowest < highest - lowest):
        low = 0.0
    if unit == "%" and highest <= 100 < high:
        high = 100.0
    step = nice_step(high - low)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(low, high, tuple((i * step, tick_label(i * step, step) + unit) for i in range(first, last + 1)))


def nice_step(span: float, most: int = 7) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that gives at most `most` steps."""
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= most)


def tick_label(value: float, step: float) -> str:
    """As short as the distance between ticks allows: 0.25, 12k, 3e-04."""
    if abs(value) < step / 2:
        return "0"
    if step < 1e-4:
        return f"{value:.{max(0, _power_of_ten(value) - _power_of_ten(step))}e}"
    if step >= 1000:
        return f"{value / 1000:g}k" if step < 1e6 else f"{value / 1e6:g}M"
    return f"{value:.{max(0, -_power_of_ten(step))}f}"


def _power_of_ten(value: float) -> int:
    """The power of ten of the first digit."""
    return math.floor(math.log10(abs(value)) + 1e-9)


def short_number(value: float) -> str:
    """A single value as text, with four digits."""
    return f"{value:.4g}"


def thin(points: list[CurvePoint], most: int = 1000) -> list[CurvePoint]:
    """At most about `most` points that look the same: of each stretch the ends, lowest and highest stay, and gaps."""
    if len(points) <= most:
        return points
    width = math.ceil(4 * len(points) / most)
    kept: list[CurvePoint] = []
    for start in range(0, len(points), width):
        stretch = list(enumerate(points[start : start + width]))
        finite = [entry for entry in stretch if math.isfinite(entry[1][1])]
        ends = {stretch[0], stretch[-1]}
        extremes = {min(finite, key=_height), max(finite, key=_height)} if finite else set()
        kept += [point for _, point in sorted(ends | extremes)]
    return kept


def _height(entry: tuple[int, CurvePoint]) -> float:
    return entry[1][1]
