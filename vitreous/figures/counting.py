"""Parameters and multiply-adds of a model, counted on the meta device, where nothing is computed.

Counted are matrix products, convolutions and attention on one image. Element-wise work is not: norms, activations,
softmax, pooling, interpolation. The figures of all our models are packaged as a table, so that listing them needs no
counting; `make figures` rewrites it, and a test compares it with the models.

How multiply-adds grow with the image is counted at four sizes and fitted by a power of the pixels: 1 is linear, 2
quadratic. A mostly linear model with a small quadratic part fits an exponent near 1 at usual sizes and a larger one at
large sizes, so the exponent between the last two sizes is shown beside the fitted one.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import linear_regression
from typing import Any, NamedTuple

import timm
import torch
from timm.models import VisionTransformer
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitreous.errors import InputError
from vitreous.files.writing import replace_content
from vitreous.models.base import Backbone
from vitreous.registry import list_models
from vitreous.runtime.console import track

TABLE_FILE = Path(__file__).with_name("table.json")
GROWTH_SIZES = (256, 512, 1024, 2048)
STEEP_EXPONENT = 1.1  # parts whose last exponent is above this are listed
OTHER_PARTS = "everything else"
FigureRow = dict[str, Any]


class Figures(NamedTuple):
    params: int
    macs: int


def count_model(model: nn.Module, size: tuple[int, int, int]) -> Figures:
    """Parameters, and multiply-adds of one image (C, H, W)."""
    return Figures(sum(p.numel() for p in model.parameters()), sum(work_by_module(model, size).values()))


def work_by_module(model: nn.Module, size: tuple[int, int, int]) -> dict[str, int]:
    """Multiply-adds of one image (C, H, W) by the path of the module that does them; "" is the model itself."""
    model = model.to("meta").eval()
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.no_grad():
            model(torch.empty(1, *size, device="meta"))
    except (AssertionError, RuntimeError) as reason:
        if isinstance(model, Backbone):
            raise
        raise InputError(  # which sizes a model of timm takes shows only when it runs
            f"{type(model).__name__} cannot take images of {size[1]}x{size[2]} pixels ({str(reason).splitlines()[0]}); "
            f"some of timm's can with --model-args dynamic_img_size=True, or with img_size={size[1]} at this size alone"
        ) from reason
    root = type(model).__name__
    flops = {
        path.removeprefix(root).removeprefix("."): sum(by_operation.values())
        for path, by_operation in counter.get_flop_counts().items()
        if path != "Global"
    }
    own: dict[str, int] = defaultdict(int)
    for path, total in flops.items():  # the count of a module includes its children
        own[path] += total // 2
        if path:
            own[_parent(path, flops)] -= total // 2
    return dict(own)


def _parent(path: str, known: dict[str, int]) -> str:
    while path := path.rpartition(".")[0]:
        if path in known:
            return path
    return ""


def figures_of(model: Any, size: tuple[int, int]) -> FigureRow:
    """What `vitreous info` shows of one of timm's or our models at an image size."""
    figures = count_model(model, (model.pretrained_cfg["input_size"][0], *size))
    return dict(
        params=figures.params,
        macs=figures.macs,
        size=size,
        strides=tuple(level["reduction"] for level in model.feature_info),
        channels=tuple(level["num_chs"] for level in model.feature_info),
    )


# ---- the packaged table -------------------------------------------------------------------------------------------


def read_table() -> dict[str, FigureRow]:
    rows = json.loads(TABLE_FILE.read_text(encoding="utf-8"))
    return {
        name: {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
        for name, row in rows.items()
    }


def count_figures(name: str, size: tuple[int, int] | None = None) -> FigureRow:
    """The row of a model, counted from the model itself; by default at the size it was published with."""
    with torch.device("meta"):
        model: Any = timm.create_model(name)
    return figures_of(model, size or model.pretrained_cfg["input_size"][1:])


def write_table() -> None:
    names = list_models()
    counted = track(names, total=len(names), label="count parameters and multiply-adds", unit="models")
    lines = [f"{json.dumps(name)}: {json.dumps(count_figures(name))}" for name in counted]
    replace_content(TABLE_FILE, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    print(f"{len(names)} models in {TABLE_FILE}")


# ---- growth with the image ----------------------------------------------------------------------------------------

# One model of every family, with the setting that matters if there is one, and a plain transformer for comparison.
COMPARED_MODELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("paca_tiny_blockwise", {}),
    ("paca_tiny", {}),
    ("paca_b0_pure", {}),
    ("xcit_tiny_12_p16", {}),
    ("emsnet_tiny", {}),
    ("mat_2", {}),
    ("partialformer_b1", dict(max_foreground=64)),
    ("partialformer_b1", {}),
    ("vit_tiny_patch16_224", dict(dynamic_img_size=True)),
)


@dataclass(frozen=True)
class Growth:
    work: tuple[Mapping[str, int], ...]  # multiply-adds by module, at each of the sizes

    @property
    def macs(self) -> tuple[int, ...]:
        return tuple(sum(at_size.values()) for at_size in self.work)

    def row(self) -> dict[str, Any]:
        return dict(
            macs=dict(zip(GROWTH_SIZES, self.macs, strict=True)),
            exponent=exponent(self.macs),
            last=exponent(self.macs[-2:]),
            parts=self.parts(),
        )

    def parts(self) -> dict[str, tuple[int, ...]]:
        """Multiply-adds of the modules whose work grows faster than the image, summed over blocks, and of the rest."""
        together: dict[str, list[int]] = defaultdict(lambda: [0] * len(self.work))
        for i, at_size in enumerate(self.work):
            for path, macs in at_size.items():
                together[re.sub(r"\bblocks\.\d+", "blocks.*", path)][i] += macs
        steep = {
            path: tuple(macs) for path, macs in together.items() if min(macs) and exponent(macs[-2:]) > STEEP_EXPONENT
        }
        others = [whole - sum(some) for whole, *some in zip(self.macs, *steep.values(), strict=True)]
        return {**steep, OTHER_PARTS: tuple(others)}


def exponent(macs: Sequence[int]) -> float:
    """The power of the number of pixels that fits the multiply-adds at the last sizes best, by least squares."""
    return fitted_power([size * size for size in GROWTH_SIZES[-len(macs) :]], macs)


def fitted_power(pixels: Sequence[float], values: Sequence[float]) -> float:
    """The power of the number of pixels that fits the values best, by least squares on a log scale."""
    return linear_regression([log(count) for count in pixels], [log(value) for value in values]).slope


def work_at(model: Any, size: int) -> dict[str, int]:
    return work_by_module(model, (model.pretrained_cfg["input_size"][0], size, size))


def growth_reason(model: nn.Module) -> str | None:
    """Why a model's work grows as it does, if known."""
    if isinstance(model, VisionTransformer):
        return "Quadratic: every patch attends to all patches."
    return model.growth if isinstance(model, Backbone) else None


if __name__ == "__main__":  # make figures
    write_table()
