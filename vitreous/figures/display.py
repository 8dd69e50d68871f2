"""Figures as tables for a terminal, narrow or wide, or as Markdown."""

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, get_type_hints
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitreous.figures.counting import GROWTH_SIZES, exponent
from vitreous.models.arguments import ARGUMENT_MEANINGS
from vitreous.models.base import Backbone

LIST_HEADINGS = ["model", "params", "MACs", "at", "strides", "published top-1", "weights", "source"]
GROWTH_HEADINGS = ["model", *map(str, GROWTH_SIZES), "exponent", "last"]
RIGHT_ALIGNED = {"params", "MACs", "at", "published top-1", *GROWTH_HEADINGS[1:]}
WIDE_COLUMNS = 110  # of a terminal with room for the weights and the source of every model
MAX_LISTED_CLASSES = 10
FOR_SMALL_IMAGES = {"stem_stride": 1, "patch": 4}
LEGEND = (
    "Billions of multiply-adds at image sizes in pixels; element-wise work is not counted. Exponent: of the number of "
    "pixels, fitted over all four sizes; 1 is linear, 2 quadratic. Last: the exponent between the last two sizes."
)


class Argument(NamedTuple):
    value: Any
    meaning: str


def arguments_of(model: Backbone, given: Mapping[str, Any]) -> dict[str, Argument]:
    """Name -> value and meaning, for a model that was built with the given arguments."""
    signature = inspect.signature(type(model)).parameters
    values = {
        name: given.get(name, parameter.default)
        for name, parameter in signature.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    if model.settings is not None:
        values |= {field.name: getattr(model.settings, field.name) for field in fields(model.settings)}
    values |= dict(
        num_classes=model.num_classes,
        in_chans=model.in_chans,
        global_pool=model.global_pool,
        drop_rate=model.head_drop.p,
    )
    meanings = ARGUMENT_MEANINGS | meanings_in_docstring(type(model)) | meanings_in_fields(type(model.settings))
    return {name: Argument(value, meanings[name]) for name, value in values.items()}


def meanings_in_docstring(family: type) -> dict[str, str]:
    """The `Args:` section of a class, each text on one line."""
    section = (inspect.getdoc(family) or "").partition("Args:\n")[2]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def meanings_in_fields(settings: type) -> dict[str, str]:
    """The `Doc` of every annotated field."""
    hints = get_type_hints(settings, include_extras=True)
    return {name: hint.__metadata__[0].documentation for name, hint in hints.items() if hasattr(hint, "__metadata__")}


def print_list(rows: Mapping[str, Mapping[str, Any]], *, markdown: bool) -> None:
    if markdown:
        print_markdown(LIST_HEADINGS, [[name, *figure_cells(row)] for name, row in rows.items()])
        return
    console = Console()
    headings = LIST_HEADINGS if console.width >= WIDE_COLUMNS else LIST_HEADINGS[:-2]
    lines = [[name, *short_cells(row)][: len(headings)] for name, row in rows.items()]
    console.print(make_table(headings, lines, breaks="published top-1"))
    console.print("One model in detail: vitreous info NAME", style="dim")


def figure_cells(row: Mapping[str, Any]) -> list[str]:
    """The cells under all headings but the first."""
    top1 = f"{row['top1']:.1f}" + ("" if row["data"] == "ImageNet-1k" else f" ({row['data']})") if row["top1"] else "–"
    height, width = row["size"]
    return [
        f"{row['params'] / 1e6:.1f} M",
        f"{row['macs'] / 1e9:.2f} G",
        f"{height}" if height == width else f"{height}x{width}",
        "/".join(map(str, row["strides"])),
        top1,
        ", ".join(row["tags"]) or "–",
        source_text(row["paper"]),
    ]


def short_cells(row: Mapping[str, Any]) -> list[str]:
    """The same in one line: the first of several weights, the site of a URL."""
    *figures, weights, paper = figure_cells(row)
    more = len(row["tags"]) - 1
    return [*figures, f"{row['tags'][0]} +{more}" if more > 0 else weights, urlsplit(paper).hostname or paper]


def source_text(paper: str | None) -> str:
    number = re.search(r"arxiv\.org/abs/([\d.]+)", paper or "")
    return f"arXiv {number[1]}" if number else paper or "–"


def make_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, breaks: str) -> Table:
    """A table in which only the column `breaks` may wrap."""
    table = Table(box=None, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in RIGHT_ALIGNED else "left", no_wrap=heading != breaks)
    for row in rows:
        table.add_row(*row)
    return table


def print_markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = ["| " + " | ".join(headings) + " |"]
    lines.append("|" + "|".join("---:" if heading in RIGHT_ALIGNED else "---" for heading in headings) + "|")
    lines += ["| " + " | ".join([f"`{row[0]}`", *row[1:]]) + " |" for row in rows]
    Console(soft_wrap=True, highlight=False).print("\n".join(lines), markup=False)


def two_columns(title: str, width: int | None = None) -> Table:
    """A table of names and texts; the texts are at most `width` wide."""
    table = Table(title=Text(title), box=None, show_header=False, title_justify="left", title_style="bold")
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold", max_width=width)
    return table


def print_one(title: str, name: str, row: Mapping[str, Any]) -> None:
    table = two_columns(title)
    for heading, cell in zip(LIST_HEADINGS[1:], figure_cells(row), strict=True):
        table.add_row(heading, Text(cell))
    if "classes" in row:
        shown = ", ".join(row["classes"][:MAX_LISTED_CLASSES]) + (
            ", …" if len(row["classes"]) > MAX_LISTED_CLASSES else ""
        )
        table.add_row("classes", Text(f"{len(row['classes'])}: {shown}"))
    table.add_row("channels", ", ".join(map(str, row["channels"])))
    table.add_row("taps", Text("\n".join(tap_patterns(row["taps"])) or "none: not one of our models"))
    Console(highlight=False).print(table)
    if "arguments" in row:
        print_arguments(name, row["arguments"])


def tap_patterns(taps: Iterable[str]) -> list[str]:
    """Taps that differ only in numbers, as one pattern for `vitreous.record`, with their count."""
    together = Counter(re.sub(r"\.\d+", ".*", tap) for tap in taps)
    return [f"{pattern}  ({number})" for pattern, number in together.items()]


def print_arguments(name: str, arguments: Mapping[str, Argument]) -> None:
    table = two_columns("\nArguments it was built with, and what they mean", width=len("(100, 100, 100, 100)"))
    table.add_column()
    for argument, (value, meaning) in arguments.items():
        table.add_row(argument, Text(str(value)), Text(meaning))
    console = Console(highlight=False)
    console.print(table)
    hint = f'\nTo set one: vitreous.create_model("{name}", argument=value), or --model-args argument=value here.'
    smaller = [f"{argument}={value}" for argument, value in FOR_SMALL_IMAGES.items() if argument in arguments]
    console.print(Text(" ".join([hint, *(f"For images of about 32x32 pixels: {setting}." for setting in smaller)])))


def short_billions(macs: int) -> str:
    """At least three digits, so that a row fits 80 columns."""
    billions = macs / 1e9
    return f"{billions:.{0 if billions >= 100 else 1 if billions >= 10 else 2}f}"


def print_growth(rows: Mapping[str, Sequence[int]], reasons: Mapping[str, str], *, markdown: bool = False) -> None:
    """Multiply-adds at each size by name, and why the families grow as they do."""
    lines = [
        [name, *map(short_billions, macs), f"{exponent(macs):.3f}", f"{exponent(macs[-2:]):.3f}"]
        for name, macs in rows.items()
    ]
    if markdown:
        print_markdown(GROWTH_HEADINGS, lines)
        return
    console = Console(highlight=False)
    console.print(make_table(GROWTH_HEADINGS, lines, breaks="model"))
    table = two_columns("")
    for family, sentence in reasons.items():
        table.add_row(family, Text(sentence))
    console.print()
    console.print(table)
    console.print(Text(f"\n{LEGEND}", style="dim"))
