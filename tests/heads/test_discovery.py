"""A new head is one file, found by being in the folder."""

import sys
from pathlib import Path

import pytest
import timm
import torch

from tests.support.pages import blocks
from vitreous import heads
from vitreous.heads.segment import build_segmenter

(HEAD,) = [block for block in blocks("CONTRIBUTING.md", "python") if "HEADS =" in block]


def test_a_head_in_another_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain.py").write_text(HEAD)
    monkeypatch.setattr(heads, "__path__", list(heads.__path__))
    known = list(heads.heads_of("segment"))
    heads.add_heads(tmp_path)
    try:
        assert sorted(heads.heads_of("segment")) == sorted([*known, "plain"])
        backbone = timm.create_model("resnet18", features_only=True)
        model = build_segmenter(backbone, "plain", 3, kernel_size=3).eval()
        assert model(torch.zeros(1, 3, 64, 96)).shape == (1, 3, 64, 96)
    finally:
        sys.modules.pop("vitreous.heads.plain", None)
