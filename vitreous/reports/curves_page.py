"""Charts as one HTML file that needs nothing else. Equal charts give equal bytes.

The drawings are SVG whose places are percentages of the plot, so that they fit any width without a script and text
keeps its size on a phone; the script only adds reading values and hiding runs.
"""

import math
from collections.abc import Sequence
from typing import Any

from vitreous.reports.chart import Chart, LegendEntry, Series, short_number
from vitreous.reports.page import render_page


def render_curves(charts: Sequence[Chart], *, title: str, legend: Sequence[LegendEntry], note: str) -> str:
    """The page as a string; `legend` has an entry for every group of series."""
    return render_page(
        "curves",
        styles=["curves.css"],
        scripts=["curves.js"],
        title=title,
        legend=legend,
        note=note,
        charts=[_drawn(chart) for chart in charts],
        values=[_values(chart) for chart in charts],
    )


def _drawn(chart: Chart) -> dict[str, Any]:
    """Where everything of a chart lies; faint series are behind the others."""
    x_axis, y_axis = chart.x_axis(), chart.y_axis()

    def place(x: float, y: float) -> tuple[float, float]:
        return x_axis.share(x), 1 - y_axis.share(y)

    def curve(series: Series) -> dict[str, Any]:
        lines = [[place(x, y) for x, y in piece] for piece in series.pieces()]
        dots = [place(x, y) for x, y in series.dots()]
        return {
            "series": series,
            "kind": " ".join(kind for kind in ("dashed", "faint") if getattr(series, kind)),
            "lines": [" ".join(f"{1000 * x:.1f},{1000 * y:.1f}" for x, y in line) for line in lines],
            "dots": [(f"{100 * x:.2f}", f"{100 * y:.2f}") for x, y in dots],
        }

    return {
        "title": chart.title,
        "x_label": chart.x_label,
        "x_ticks": [(f"{100 * x_axis.share(value):.2f}", label) for value, label in x_axis.ticks],
        "y_ticks": [(f"{100 * (1 - y_axis.share(value)):.2f}", label) for value, label in y_axis.ticks],
        "curves": [curve(series) for series in sorted(chart.series, key=lambda series: not series.faint)],
        "rows": [_row(chart, series) for series in chart.series if not series.faint],
    }


def _row(chart: Chart, series: Series) -> dict[str, Any]:
    values = [y for _, y in series.points if math.isfinite(y)]
    figures = [short_number(y) + chart.unit for y in (values[-1], min(values), max(values))] if values else ["–"] * 3
    return {"name": series.name, "figures": [len(series.points), *figures]}


def _values(chart: Chart) -> dict[str, Any]:
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
