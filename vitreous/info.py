"""vitreous info: the models we have, or one of them in figures."""

import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

import timm
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitreous.errors import InputError
from vitreous.layers.tap import tap_names
from vitreous.registry import ENTRIES, list_models, resolve_name
from vitreous.training.model_folder import build_architecture, find_model_folder, read_config
from vitreous.training.progress import track


class Figures(NamedTuple):
    params: int
    macs: int


def info(
    model: str | None = None, *, size: int | None = None, markdown: bool = False, filter: str = "*"
) -> dict[str, dict[str, Any]]:
    """List the models, or show one: parameters, multiply-adds, strides, channels and taps.

    Examples:
        vitreous info                           all models
        vitreous info --filter "*b0*"           some of them
        vitreous info paca_tiny --size 512      one model at 512x512 pixels
        vitreous info runs/demo                 the model of a run
        vitreous info --markdown                the table of the README

    Args:
        model: Model name, ours or any of timm's, or a run folder or model folder. Without it, all of ours are listed.
        size: Image size in pixels for the multiply-adds; by default the one the model was published or trained with.
        markdown: Print the list as a Markdown table.
        filter: Shell-style pattern that chooses the models to list.

    Returns:
        What was printed: model name -> figures.
    """
    if size is not None and size < 1:
        raise InputError(f"--size {size} given; it is a number of pixels, at least 32")
    if model is not None:
        if markdown or filter != "*":
            option = "--markdown" if markdown else f"--filter {filter!r}"
            raise InputError(f"{option} is for the list of models; leave it out, or leave out {model!r}")
        folder = find_model_folder(model)
        return {model: show_folder(folder, size) if folder else show(resolve_name(model), size)}
    names = list_models(filter)
    if not names:
        raise InputError(f"no model matches {filter!r}; all: vitreous info")
    counted = track(names, total=len(names), label="count parameters and multiply-adds", unit="models")
    rows = {name: describe(name, size) for name in counted}
    write = print_markdown if markdown else print_table
    write(rows)
    return rows


def measure(model: nn.Module, size: tuple[int, int, int]) -> Figures:
    """Parameters, and multiply-adds of one image (C, H, W). On the meta device nothing is computed."""
    model = model.to("meta").eval()
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(torch.empty(1, *size, device="meta"))
    return Figures(sum(p.numel() for p in model.parameters()), counter.get_total_flops() // 2)


def describe(name: str, size: int | None) -> dict[str, Any]:
    """What the list says of a model: our counts beside the published figures."""
    with torch.device("meta"):
        model: Any = timm.create_model(name)
    native = model.pretrained_cfg["input_size"][1:]
    entry = ENTRIES.get(name)
    published = entry.published if entry else None
    return counts(model, (size, size) if size else tuple(native)) | dict(
        top1=published.top1 if published else None,
        data=published.data if published else None,
        tags=list(entry.tags) if entry else [full.partition(".")[2] for full in timm.list_pretrained(f"{name}.*")],
        paper=entry.paper if entry else None,
    )


def counts(model: Any, size: tuple[int, int]) -> dict[str, Any]:
    figures = measure(model, (model.pretrained_cfg["input_size"][0], *size))
    return dict(
        params=figures.params,
        macs=figures.macs,
        size=size,
        strides=tuple(level["reduction"] for level in model.feature_info),
        channels=tuple(level["num_chs"] for level in model.feature_info),
    )


def cells(name: str, row: dict[str, Any]) -> list[str]:
    top1 = f"{row['top1']:.1f}" + ("" if row["data"] == "ImageNet-1k" else f" ({row['data']})") if row["top1"] else "–"
    height, width = row["size"]
    return [
        name,
        f"{row['params'] / 1e6:.1f} M",
        f"{row['macs'] / 1e9:.2f} G",
        f"{height}" if height == width else f"{height}x{width}",
        "/".join(map(str, row["strides"])),
        top1,
        ", ".join(row["tags"]) or "–",
        source(row["paper"]),
    ]


def source(paper: str | None) -> str:
    number = re.search(r"arxiv\.org/abs/([\d.]+)", paper or "")
    return f"arXiv {number[1]}" if number else paper or "–"


SHOWN_CLASSES = 10
HEADINGS = ["model", "params", "MACs", "at", "strides", "published top-1", "weights", "source"]
RIGHT = {"params", "MACs", "at", "published top-1"}


def print_table(rows: dict[str, dict[str, Any]]) -> None:
    table = Table(caption="One model in detail: vitreous info NAME", box=None, header_style="bold")
    for heading in HEADINGS:
        justify: Literal["left", "right"] = "right" if heading in RIGHT else "left"
        table.add_column(heading, justify=justify, no_wrap=heading == "model")
    for name, row in rows.items():
        table.add_row(*cells(name, row))
    Console().print(table)


def print_markdown(rows: dict[str, dict[str, Any]]) -> None:
    lines = ["| " + " | ".join(HEADINGS) + " |"]
    lines.append("|" + "|".join("---:" if heading in RIGHT else "---" for heading in HEADINGS) + "|")
    lines += ["| " + " | ".join([f"`{name}`", *cells(name, row)[1:]]) + " |" for name, row in rows.items()]
    Console(soft_wrap=True, highlight=False).print("\n".join(lines), markup=False)


def show(name: str, size: int | None) -> dict[str, Any]:
    bare = name.partition(".")[0]
    row = describe(bare, size)
    with torch.device("meta"):
        row["taps"] = tap_names(timm.create_model(bare))
    print_one(bare, row)
    return row


def show_folder(folder: Path, size: int | None) -> dict[str, Any]:
    """A trained model: its own arguments and classes; published figures are those of other weights."""
    config = read_config(folder)
    with torch.device("meta"):
        model = build_architecture(folder, config)
    entry = ENTRIES.get(config.architecture)
    row = counts(model, (size, size) if size else config.preprocess.size) | dict(
        top1=None,
        data=None,
        tags=[],
        paper=entry.paper if entry else None,
        taps=tap_names(model),
        classes=config.classes,
    )
    print_one(f"{config.architecture} in {folder}", row)
    return row


def print_one(title: str, row: dict[str, Any]) -> None:
    table = Table(title=Text(title), box=None, show_header=False, title_justify="left", title_style="bold")
    table.add_column(style="cyan")
    table.add_column()
    for heading, cell in zip(HEADINGS[1:], cells(title, row)[1:], strict=True):
        table.add_row(heading, cell)
    if "classes" in row:
        shown = ", ".join(row["classes"][:SHOWN_CLASSES]) + (", …" if len(row["classes"]) > SHOWN_CLASSES else "")
        table.add_row("classes", Text(f"{len(row['classes'])}: {shown}"))
    table.add_row("channels", ", ".join(map(str, row["channels"])))
    table.add_row("taps", "\n".join(row["taps"]) or "none: not one of our models")
    Console().print(table)
