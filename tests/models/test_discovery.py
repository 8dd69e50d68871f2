"""A new family is one file, found by being in the folder."""

import sys
from pathlib import Path

import pytest
import timm
import torch

from vitreous import models
from vitreous.registry import ENTRIES

FAMILY = """
from torch import nn

from vitreous.layers.patch import PatchEmbed
from vitreous.models.base import Backbone, Stage
from vitreous.registry import register


class OneLayer(Backbone):
    first_conv = "stem.conv"

    def __init__(self, dim: int, **options) -> None:
        super().__init__((dim,), (4,), **options)
        self.stem = PatchEmbed(self.in_chans, dim, kernel_size=7, stride=4, eps=1e-6)
        self.stages = nn.ModuleList([Stage(nn.Identity(), [nn.Linear(dim, dim)], nn.LayerNorm(dim))])


register(OneLayer, {"one_layer_8": dict(dim=8)}, paper="https://example.org")
"""


def test_a_family_in_another_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one_layer.py").write_text(FAMILY)
    monkeypatch.setattr(models, "__path__", list(models.__path__))
    before = list(ENTRIES)
    models.add_models(tmp_path)
    try:
        assert list(ENTRIES) == [*before, "one_layer_8"]
        assert timm.create_model("one_layer_8", num_classes=3)(torch.zeros(2, 3, 32, 48)).shape == (2, 3)
    finally:
        ENTRIES.pop("one_layer_8", None)
        sys.modules.pop("vitreous.models.one_layer", None)
