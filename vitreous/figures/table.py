"""The figures of all our models, packaged so that listing them needs no counting.

`make figures` rewrites the table; a test compares it with counts from the models.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import timm
import torch

from vitreous.figures.counting import figures_of
from vitreous.files.writing import replace_content

TABLE_FILE = Path(__file__).with_name("table.json")
FigureRow = dict[str, Any]


def read_table() -> dict[str, FigureRow]:
    rows = json.loads(TABLE_FILE.read_text(encoding="utf-8"))
    return {name: _row(values) for name, values in rows.items()}


def _row(values: FigureRow) -> FigureRow:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def count_figures(name: str, size: tuple[int, int] | None = None) -> FigureRow:
    """The row of a model, counted from the model itself; by default at the size it was published with."""
    with torch.device("meta"):
        model: Any = timm.create_model(name)
    return figures_of(model, size or model.pretrained_cfg["input_size"][1:])


def write_table(names: Iterable[str]) -> None:
    lines = [f"{json.dumps(name)}: {json.dumps(count_figures(name))}" for name in names]
    replace_content(TABLE_FILE, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
