"""How the multiply-adds of a model grow with the image: counted at four sizes, fitted by a power of the pixels.

An exponent of 1 is linear, 2 quadratic. A mostly linear model with a small quadratic part fits an exponent near 1 at
usual sizes and a larger one at large sizes, so the exponent between the last two sizes is shown beside the fitted one.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import linear_regression
from typing import Any

from timm.models import VisionTransformer
from torch import nn

from vitreous.figures.counting import work_by_module
from vitreous.models.base import Backbone

GROWTH_SIZES = (256, 512, 1024, 2048)
STEEP_EXPONENT = 1.1  # parts whose last exponent is above this are listed
OTHER_PARTS = "everything else"

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
    pixels = [size * size for size in GROWTH_SIZES[-len(macs) :]]
    return linear_regression([log(count) for count in pixels], [log(count) for count in macs]).slope


def work_at(model: Any, size: int) -> dict[str, int]:
    return work_by_module(model, (model.pretrained_cfg["input_size"][0], size, size))


def growth_reason(model: nn.Module) -> str | None:
    """Why a model's work grows as it does, if known."""
    if isinstance(model, VisionTransformer):
        return "Quadratic: every patch attends to all patches."
    return model.growth if isinstance(model, Backbone) else None
