"""Charts as one HTML file that needs nothing else. Equal charts give equal bytes.

The drawings are SVG whose places are percentages of the plot, so that they fit any width without a script and text
keeps its size on a phone; the script only adds reading values and hiding runs.
"""

import json
import math
from collections.abc import Sequence
from html import escape

from vitreous.reports.chart import Chart, Series, shown
from vitreous.reports.curves import Key
from vitreous.reports.page import fill


def render(charts: Sequence[Chart], *, title: str, legend: Sequence[Key], note: str) -> str:
    """The page as a string; `legend` has an entry for every group of series."""
    parts = {
        "TITLE": escape(title),
        "LEGEND": "".join(_key(key) for key in legend),
        "NOTE": escape(note),
        "CHARTS": "\n".join(_figure(chart) for chart in charts),
        "ROWS": "".join(_row(chart, series) for chart in charts for series in chart.series if not series.faint),
        # A "<" could end the script element that holds the values; JSON may write it as an escape.
        "DATA": json.dumps([_values(chart) for chart in charts], separators=(",", ":")).replace("<", "\\u003c"),
    }
    return fill("vitreous.reports", "curves", parts)


def _key(key: Key) -> str:
    name = escape(key.name)
    return (
        f'<label><input type="checkbox" checked disabled value="{name}"><svg class="swatch" aria-hidden="true">'
        f'<rect width="28" height="4" fill="{key.colour}"/></svg>{name}</label>'
    )


def _figure(chart: Chart) -> str:
    x_axis, y_axis = chart.x_axis(), chart.y_axis()
    grid = "".join(_y_tick(100 * (1 - y_axis.share(value)), label) for value, label in y_axis.ticks)
    grid += "".join(_x_tick(100 * x_axis.share(value), label) for value, label in x_axis.ticks)
    ordered = sorted(chart.series, key=lambda series: not series.faint)
    lines, dots = "".join(_lines(chart, s) for s in ordered), "".join(_dots(chart, s) for s in ordered)
    return (
        f'<figure class="chart" tabindex="0" role="group" aria-label="{escape(chart.title)}">'
        f'<figcaption>{escape(chart.title)}</figcaption><div class="plot" aria-hidden="true"><svg class="area">'
        f'{grid}<line class="base" x1="0" x2="100%" y1="100%" y2="100%"/>'
        f'<text class="x" x="50%" y="100%" dy="44">{escape(chart.x_label)}</text>'
        f'<svg class="lines" viewBox="0 0 1000 1000" preserveAspectRatio="none">{lines}</svg>'
        f'{dots}</svg></div><div class="tip" role="status" aria-live="polite" hidden></div></figure>'
    )


def _y_tick(place: float, label: str) -> str:
    return (
        f'<line class="grid" x1="0" x2="100%" y1="{place:.2f}%" y2="{place:.2f}%"/>'
        f'<text class="y" x="-10" y="{place:.2f}%" dy="4">{label}</text>'
    )


def _x_tick(place: float, label: str) -> str:
    return f'<text class="x" x="{place:.2f}%" y="100%" dy="22">{label}</text>'


def _lines(chart: Chart, series: Series) -> str:
    x_axis, y_axis = chart.x_axis(), chart.y_axis()
    kind = " ".join(name for name, given in (("dashed", series.dashed), ("faint", series.faint)) if given)
    pieces = (
        " ".join(f"{1000 * x_axis.share(x):.1f},{1000 * (1 - y_axis.share(y)):.1f}" for x, y in piece)
        for piece in series.pieces()
    )
    drawn = "".join(f'<polyline class="{kind}" stroke="{series.colour}" points="{points}"/>' for points in pieces)
    return f'<g data-group="{escape(series.group)}">{drawn}</g>'


def _dots(chart: Chart, series: Series) -> str:
    x_axis, y_axis = chart.x_axis(), chart.y_axis()
    drawn = "".join(
        f'<circle cx="{100 * x_axis.share(x):.2f}%" cy="{100 * (1 - y_axis.share(y)):.2f}%" r="3.5" '
        f'fill="{series.colour}"/>'
        for x, y in series.dots()
    )
    return f'<g data-group="{escape(series.group)}">{drawn}</g>'


def _row(chart: Chart, series: Series) -> str:
    values = [y for _, y in series.points if math.isfinite(y)]
    figures = [shown(y) + chart.unit for y in (values[-1], min(values), max(values))] if values else ["–"] * 3
    cells = "".join(f'<td class="number">{figure}</td>' for figure in [str(len(series.points)), *figures])
    return f"<tr><td>{escape(chart.title)}</td><td>{escape(series.name)}</td>{cells}</tr>"


def _values(chart: Chart) -> dict[str, object]:
    """What the script needs to read values."""
    x_axis, y_axis = chart.x_axis(), chart.y_axis()
    series = [
        {
            "name": item.name,
            "group": item.group,
            "colour": item.colour,
            "dashed": item.dashed,
            "points": [[float(f"{x:.9g}"), float(f"{y:.6g}")] for x, y in item.points if math.isfinite(y)],
        }
        for item in chart.series
        if not item.faint
    ]
    ends = {"x": [x_axis.low, x_axis.high], "y": [y_axis.low, y_axis.high]}
    return {"label": chart.x_label, "unit": chart.unit, **ends, "series": series}
