"""What a model without a classifier looks at: the maps inside it, one by one, as there is no answer to explain.

Of a class token what each of its attention heads reads, as in figures of DINO and XCiT; of a PaCa its clusters.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.attribution.views import TapView, view_stacks, views
from vitreous.drawing.panels import Panel, contact_sheet, enlarge, overlay
from vitreous.errors import InputError
from vitreous.explanations.folder import EXPLANATION_JSON, REPORT_PAGE
from vitreous.files.storage import write_json
from vitreous.files.writing import write_text
from vitreous.reports.page import jpeg_uri, render_page
from vitreous.runs.results import file_name
from vitreous.runs.trained_model import TrainedModel

SHOWN_KINDS = ("class_attention", "clusters")  # the first that a model has
MOST_MAPS = 20
MAP_PANEL_WIDTH = 256


class InnerMaps(NamedTuple):
    """The maps of one picture."""

    name: str
    picture: Image.Image  # as the model saw it
    view: TapView
    maps: Tensor  # (K, H, W)

    def to_dict(self) -> dict[str, Any]:
        flat = self.maps.flatten(1)
        shares = flat / flat.sum(1, keepdim=True).clamp_min(1e-12)
        entropy = torch.special.entr(shares).sum(1)
        peaks = [divmod(place, self.maps.shape[2]) for place in flat.argmax(1).tolist()]
        about = {
            "image": self.name,
            "kind": self.view.kind.name,
            "tap": self.view.tap,
            "grid": list(self.maps.shape[1:]),
        }
        return about | {"entropy": entropy.tolist(), "highest": [list(peak) for peak in peaks]}


def inner_view(trained: TrainedModel) -> TapView:
    """The last maps of a kind that tells most about a model without a classifier."""
    for kind in SHOWN_KINDS:
        found = views(trained.model, kind)
        if found:
            return found[-1]
    raise InputError(
        f"model '{trained.name}' has no classifier, so that there is no answer to explain, and neither a class token "
        f"nor clusters to show; train one on top of it: vitreous train {trained.name} DATA --weights …"
    )


@torch.no_grad()
def inner_maps(trained: TrainedModel, name: str, image: Image.Image) -> InnerMaps:
    view, seen = inner_view(trained), trained.preprocess.picture(image)
    inputs = trained.preprocess(image)[None].to(trained.device)
    return InnerMaps(name, seen, view, view_stacks(trained.model, inputs, [view])[view.tap][0].cpu())


def draw_inner_maps(found: InnerMaps, model: str) -> Image.Image:
    """The picture, the mean of all maps, and each of them, from its lowest to its highest value."""
    unit, shown = found.view.kind.items, found.maps[:MOST_MAPS]
    panels = [Panel(enlarge(found.picture, MAP_PANEL_WIDTH), "picture"), _panel(found, found.maps.mean(0), "mean")]
    panels += [_panel(found, one, f"{unit} {number}") for number, one in enumerate(shown, 1)]
    more = f"; {len(found.maps) - len(shown)} more are not shown" if len(shown) < len(found.maps) else ""
    return contact_sheet(
        panels,
        heading=f"{model}: {found.view.kind.says}",
        subheading=found.name,
        footnote=f"{len(found.maps)} maps of {found.view.tap}, each scaled from its lowest to its highest value{more}",
    )


def _panel(found: InnerMaps, heat: Tensor, title: str) -> Panel:
    low, high = heat.min(), heat.max()
    scaled: np.ndarray = ((heat - low) / (high - low).clamp_min(1e-12)).numpy()
    return Panel(overlay(found.picture, scaled, width=MAP_PANEL_WIDTH), title)


def write_inner_maps(folder: Path, found: Sequence[InnerMaps], model: str) -> None:
    """A sheet for each picture, a page of all, and the numbers."""
    sheets, rows = [], []
    for index, one in enumerate(found, 1):
        sheet = draw_inner_maps(one, model)
        sheets.append(file_name(index, one.name))
        sheet.save(folder / sheets[-1])
        rows.append({"name": one.name, "sheet": jpeg_uri(sheet, quality=90)})
    page = render_page(
        "inner_maps",
        styles=("page.css", "report.css"),
        scripts=(),
        title=f"What {model} looks at",
        facts={"model": model, "maps": f"{len(found[0].maps)} of {found[0].view.tap}"},
        says=found[0].view.kind.says,
        rows=rows,
    )
    write_text(folder / REPORT_PAGE, page)
    numbers = [one.to_dict() | {"sheet": sheet} for one, sheet in zip(found, sheets, strict=True)]
    write_json(folder / EXPLANATION_JSON, {"model": model, "images": numbers, "files": [*sheets, REPORT_PAGE]})
