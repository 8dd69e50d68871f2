"""Charts as one picture, drawn with Pillow: lines at three times the size and reduced, so that they are smooth."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from PIL import Image, ImageDraw

from vitreous.charts.chart import Axis, Chart, Point, Series
from vitreous.maps.draw import INK, LINE, MARGIN, PAPER, QUIET, TEXT, TITLE, fitted, font, text_width

FINE = 3  # how much larger the lines are drawn before they are reduced
PANEL_WIDTH, PLOT_HEIGHT = 752, 320
HEAD, FOOT, LEFT = TITLE + 20, 76, 84  # around the plot of a panel: its title, the x axis, the y labels
STROKE, DOT = 3, 5  # width of a line, radius of a dot
DASH, SPACE = 12, 8


class Key(NamedTuple):
    """An entry of the legend."""

    name: str
    colour: str
    dashed: bool = False


class Frame(NamedTuple):
    """The rectangle of a plot in the picture, and where in it a point lies."""

    left: int
    top: int
    width: int
    height: int
    x_axis: Axis
    y_axis: Axis

    def at(self, x: float, y: float) -> Point:
        return (
            self.left + self.x_axis.share(x) * self.width,
            self.top + (1 - self.y_axis.share(y)) * self.height,
        )


def picture(charts: Sequence[Chart], *, heading: str, legend: Sequence[Key] = (), columns: int = 2) -> Image.Image:
    """All charts in rows under a heading and the legend."""
    columns = min(columns, len(charts))
    width = 2 * MARGIN + columns * PANEL_WIDTH
    rows = -(-len(charts) // columns)
    keys = list(_legend_places(legend, width))
    sheet = Image.new("RGB", (width, panel_top(keys) + rows * panel_height() + MARGIN // 2), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN - 6), fitted(heading, TITLE + 6, width - 2 * MARGIN), INK, font(TITLE + 6))
    for key, place in keys:
        _draw_key(sheet, key, place)
    for index, chart in enumerate(charts):
        draw_panel(sheet, chart, frame(chart, index, columns=columns, top=panel_top(keys)))
    return sheet


def panel_height() -> int:
    return HEAD + PLOT_HEIGHT + FOOT


def panel_top(keys: Sequence[tuple[Key, tuple[int, int]]]) -> int:
    """Where the first row of charts begins: below the last line of the legend."""
    return (keys[-1][1][1] if keys else MARGIN + TITLE - 10) + TEXT + 30


def frame(chart: Chart, index: int, *, columns: int, top: int) -> Frame:
    """Where the plot of the chart at this place of the sheet lies."""
    row, column = divmod(index, columns)
    left, upper = MARGIN + column * PANEL_WIDTH + LEFT, top + row * panel_height() + HEAD
    # Room for half a tick's label on the right.
    return Frame(left, upper, PANEL_WIDTH - LEFT - 28, PLOT_HEIGHT, chart.x_axis(), chart.y_axis())


def draw_panel(sheet: Image.Image, chart: Chart, frame: Frame) -> None:
    draw = ImageDraw.Draw(sheet)
    draw.text((frame.left, frame.top - HEAD), fitted(chart.title, TITLE, frame.width), INK, font(TITLE))
    sheet.paste(_plot(chart, frame), (frame.left - DOT, frame.top - DOT))
    bottom = frame.top + frame.height
    for value, label in frame.y_axis.ticks:
        _, y = frame.at(frame.x_axis.low, value)
        draw.text((frame.left - 14, y), label, QUIET, font(TEXT), anchor="rm")
    for value, label in frame.x_axis.ticks:
        x, _ = frame.at(value, frame.y_axis.low)
        draw.text((x, bottom + 12), label, QUIET, font(TEXT), anchor="ma")
    draw.text((frame.left + frame.width / 2, bottom + 38), chart.x_label, QUIET, font(TEXT), anchor="ma")


def _plot(chart: Chart, frame: Frame) -> Image.Image:
    """Grid and curves of a chart, with room for dots on the border."""
    inner = Frame(DOT * FINE, DOT * FINE, frame.width * FINE, frame.height * FINE, frame.x_axis, frame.y_axis)
    large = Image.new("RGB", (inner.width + 2 * inner.left, inner.height + 2 * inner.top), PAPER)
    draw = ImageDraw.Draw(large)
    for value, _ in frame.y_axis.ticks:
        _, y = inner.at(frame.x_axis.low, value)
        draw.line((inner.left, y, inner.left + inner.width, y), LINE, FINE)
    bottom = inner.top + inner.height
    draw.line((inner.left, bottom, inner.left + inner.width, bottom), QUIET, FINE)
    for series in sorted(chart.series, key=lambda series: not series.faint):
        draw_series(draw, series, inner)
    return large.reduce(FINE)


def draw_series(draw: ImageDraw.ImageDraw, series: Series, frame: Frame) -> None:
    colour = faded(series.colour) if series.faint else series.colour
    for piece in series.pieces():
        places = [frame.at(*point) for point in piece]
        for stroke in dashes(places, DASH * FINE, SPACE * FINE) if series.dashed else [places]:
            draw.line(stroke, colour, STROKE * FINE, joint="curve")
    for x, y in (frame.at(*point) for point in series.dots()):
        draw.circle((x, y), DOT * FINE, colour)


def faded(colour: str, strength: float = 0.3) -> str:
    """The colour as if it lay thinly on the paper."""
    mixed = [round(255 + strength * (int(colour[i : i + 2], 16) - 255)) for i in (1, 3, 5)]
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def dashes(places: Sequence[Point], dash: float, space: float) -> Iterator[list[Point]]:
    """A line cut into dashes by the length along it, so that they are equal on steep and on flat stretches."""
    current, left, inked = [places[0]], dash, True  # `left`: length until the next change
    for (x, y), (end_x, end_y) in pairwise(places):
        while (length := ((end_x - x) ** 2 + (end_y - y) ** 2) ** 0.5) > left:
            x, y = x + (end_x - x) * left / length, y + (end_y - y) * left / length
            if inked:
                yield [*current, (x, y)]
            current, inked = [(x, y)], not inked
            left = dash if inked else space
        left -= length
        current.append((end_x, end_y))
    if inked and len(current) > 1:
        yield current


def _legend_places(legend: Sequence[Key], width: int) -> Iterator[tuple[Key, tuple[int, int]]]:
    """One after the other, on as many lines as it takes."""
    x, y = MARGIN, MARGIN + TITLE + 20
    for key in legend:
        key = key._replace(name=fitted(key.name, TEXT, width - 2 * MARGIN - 60))
        needed = 50 + text_width(key.name, TEXT)
        if x > MARGIN and x + needed > width - MARGIN:
            x, y = MARGIN, y + TEXT + 14
        yield key, (x, y)
        x += needed + 36


def _draw_key(sheet: Image.Image, key: Key, place: tuple[int, int]) -> None:
    x, y = place
    large = Image.new("RGB", (40 * FINE, STROKE * FINE), PAPER)
    line = [(0.0, STROKE * FINE / 2), (40.0 * FINE, STROKE * FINE / 2)]
    for stroke in dashes(line, DASH * FINE, SPACE * FINE) if key.dashed else [line]:
        ImageDraw.Draw(large).line(stroke, key.colour, STROKE * FINE)
    sheet.paste(large.reduce(FINE), (x, y + TEXT // 2))
    ImageDraw.Draw(sheet).text((x + 50, y), key.name, INK, font(TEXT))
