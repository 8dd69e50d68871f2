"""A new head is one file, found by being in the folder."""

import sys
from pathlib import Path

import pytest
import timm
import torch

from vitreous import heads
from vitreous.heads.segment import build_segmenter

HEAD = """
from torch import nn

from vitreous.heads.semantic import Decoder, DecoderOutput


class Plain(Decoder):
    def __init__(self, channels, classes, *, kernel_size: int = 1) -> None:
        super().__init__()
        self.classifier = nn.Conv2d(channels[0], classes, kernel_size, padding=kernel_size // 2)

    def forward(self, maps, *, auxiliary: bool = True) -> DecoderOutput:
        return DecoderOutput(self.classifier(maps[0]))


HEADS = {"segment": {"plain": Plain}}
"""


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
