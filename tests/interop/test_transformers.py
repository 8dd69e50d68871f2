"""transformers' TimmWrapper: made on the meta device, then filled from a model folder as `vitreous train` leaves it."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoModel, AutoModelForImageClassification, pipeline

from tests.support.families import FAMILIES, save_small

IMAGES = torch.randn(2, 3, 96, 160)
KINDS = (*FAMILIES, "paca_small_mlp", "paca_tiny_blockwise", "paca_tiny_linear")


@torch.no_grad()
@pytest.mark.parametrize("name", KINDS)
def test_logits_are_ours(name: str, tmp_path: Path) -> None:
    model = save_small(tmp_path / "best", name)
    wrapped = AutoModelForImageClassification.from_pretrained(tmp_path / "best").eval()
    assert torch.equal(wrapped(IMAGES).logits, model(IMAGES))
    assert wrapped.config.id2label == {0: "ant", 1: "bee", 2: "cat"}


@torch.no_grad()
def test_written_by_transformers_and_read_again(tmp_path: Path) -> None:
    model = save_small(tmp_path / "best", "paca_tiny_teacher")
    AutoModelForImageClassification.from_pretrained(tmp_path / "best").save_pretrained(tmp_path / "again")
    again = AutoModelForImageClassification.from_pretrained(tmp_path / "again").eval()
    assert torch.equal(again(IMAGES).logits, model(IMAGES))


@torch.no_grad()
def test_features_and_maps(tmp_path: Path) -> None:
    model = save_small(tmp_path / "best", "mat_1")
    output = AutoModel.from_pretrained(tmp_path / "best").eval()(IMAGES, output_hidden_states=True)
    expected = model.features(IMAGES)
    assert torch.equal(output.pooler_output, expected.pooled)
    for ours, theirs in zip(expected.maps, output.hidden_states, strict=True):
        assert torch.equal(ours, theirs)


def test_pipeline_says_the_names_of_classes(tmp_path: Path) -> None:
    save_small(tmp_path / "best", "paca_b0")
    answers = pipeline("image-classification", model=str(tmp_path / "best"))(Image.new("RGB", (100, 80), "red"))
    assert {answer["label"] for answer in answers} == {"ant", "bee", "cat"}
