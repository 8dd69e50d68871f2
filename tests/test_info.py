from pathlib import Path

import pytest
import timm
import torch

from tests.tiny_model import save_tiny_model
from vitreous.errors import InputError
from vitreous.info import info, measure
from vitreous.training.model_folder import load_model


def test_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    row = info("paca_b0", size=64)["paca_b0"]
    text = capsys.readouterr().out
    assert row["strides"] == (4, 8, 16, 32)
    assert "stages.2.clusters.1" in row["taps"]
    assert "3.3 M" in text
    assert "stages.0.clusters" in text


def test_markdown_table(capsys: pytest.CaptureFixture[str]) -> None:
    info(markdown=True, filter="paca_b0*")
    lines = capsys.readouterr().out.strip().split("\n")
    assert lines[0].startswith("| model | params")
    assert len(lines) == 2 + 4
    assert len({line.count("|") for line in lines}) == 1


def test_any_timm_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert info("resnet18")["resnet18"]["macs"] == pytest.approx(1.81e9, rel=0.01)
    assert "not one of our models" in capsys.readouterr().out


def test_macs_of_a_linear_layer() -> None:
    assert measure(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)), (3, 2, 2)) == (65, 60)


def test_macs_do_not_depend_on_the_device_or_strips() -> None:
    """Strips repeat a few rows on the CPU; the count must be of the architecture, not of that."""
    with torch.device("meta"):
        model = timm.create_model("paca_b0")
    assert measure(model, (3, 224, 224)).macs == pytest.approx(0.62e9, rel=0.01)


def test_unknown_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="nearest: paca_tiny"):
        info("paca_tiyn")
    with pytest.raises(InputError, match="no model matches"):
        info(filter="nothing*")
    with pytest.raises(InputError, match="number of pixels"):
        info("paca_b0", size=-3)


def test_options_of_the_list_are_refused_for_one_model() -> None:
    with pytest.raises(InputError, match="--markdown is for the list"):
        info("paca_b0", markdown=True)
    with pytest.raises(InputError, match="--filter"):
        info("paca_b0", filter="paca*")


def test_run_and_model_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_tiny_model(tmp_path / "best")
    trained = load_model(folder)
    for source in (folder, str(tmp_path)):
        row = info(source)[source]
        assert row["params"] == sum(p.numel() for p in trained.model.parameters())
        assert (row["size"], row["channels"]) == ((64, 64), (8, 16, 24, 32))
        assert "heart" in capsys.readouterr().out
    assert info(folder, size=128)[folder]["macs"] > row["macs"]
    with pytest.raises(InputError, match="there is no folder"):
        info("runs/absent")
