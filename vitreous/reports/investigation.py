"""What an investigation has found: figures, charts, pictures, and the paragraph that tells how to read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image
from rich.table import Table

from vitreous.drawing.sheet import Sheet
from vitreous.files.writing import write_text
from vitreous.reports.chart import Chart, LegendEntry
from vitreous.reports.evaluation import Grid, console_table, markdown_rows
from vitreous.reports.figure import as_image, as_svg, curves_figure

MOST_TOLD = 40  # of a table that is read; the file has all


@dataclass(frozen=True)
class Findings:
    """Figures, and how they are shown. `undefined`: for which models the quantity has no meaning, and why."""

    rows: tuple[Mapping[str, Any], ...]
    charts: tuple[Chart, ...] = ()
    legend: tuple[LegendEntry, ...] = ()
    pictures: Mapping[str, Sheet] = field(default_factory=dict)  # by name, each in files of its own
    undefined: Mapping[str, str] = field(default_factory=dict)  # model -> reason
    columns: tuple[str, ...] = ()  # of the rows, those that the table shows

    def grid(self, title: str) -> Grid:
        rows = [tuple(cell(row[name]) for name in self.columns) for row in self.rows[:MOST_TOLD]]
        more = len(self.rows) - len(rows)
        headings = tuple(name.replace("_", " ") for name in self.columns)
        return Grid(
            title + (f" (the first {len(rows)} of {len(self.rows)} rows)" if more else ""), headings, tuple(rows)
        )


def cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list | tuple):
        return " ".join(map(cell, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def findings_table(kind: str, findings: Findings) -> Table:
    return console_table(findings.grid(kind))


def chart_files(kind: str, findings: Findings) -> dict[str, Image.Image | str]:
    """By file name: charts as pixels and as a vector graphic, and pictures."""
    files: dict[str, Image.Image | str] = {}
    if findings.charts:
        figure = curves_figure(findings.charts, heading=kind, legend=findings.legend)
        files |= {f"{kind}.png": as_image(figure), f"{kind}.svg": as_svg(figure)}
    for name, sheet in findings.pictures.items():
        files |= {f"{name}.png": sheet.picture(), f"{name}.svg": sheet.vector()}
    return files


def findings_markdown(kind: str, asks: str, reading: str, findings: Findings, pictures: Sequence[str]) -> str:
    lines = [f"# {kind}: {asks}", "", reading, ""]
    lines += [f"![{name}]({name})\n" for name in pictures]
    lines += markdown_rows(findings.grid(kind))
    if findings.undefined:
        lines += ["", "Not defined for:", *(f"- {name}: {reason}" for name, reason in findings.undefined.items())]
    return "\n".join(lines) + "\n"


def write_charts_and_text(folder: Path, text: str, name: str, asks: str, reading: str, findings: Findings) -> list[str]:
    """Everything but the figures for programs; returns the names of the files, that of the text last."""
    files = chart_files(name, findings)
    for file, content in files.items():
        if isinstance(content, str):
            write_text(folder / file, content)
        else:
            content.save(folder / file)
    shown = [file for file in files if file.endswith(".png")]
    write_text(folder / text, findings_markdown(name, asks, reading, findings, shown))
    return [*files, text]
