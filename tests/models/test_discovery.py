"""A new family is one file, found by being in the folder."""

import sys
from pathlib import Path

import pytest
import timm
import torch

from tests.support.pages import blocks
from vitreous import models
from vitreous.registry import ENTRIES

(FAMILY,) = [block for block in blocks("CONTRIBUTING.md", "python") if "register(" in block]


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
