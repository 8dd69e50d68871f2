import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.tiny_model import save_tiny_model
from vitreous import list_models
from vitreous.errors import InputError
from vitreous.figures import counting
from vitreous.info import info
from vitreous.runs.model_folder import load_model


def test_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    row = info("paca_b0", size=64)["paca_b0"]
    text = capsys.readouterr().out
    assert row["strides"] == (4, 8, 16, 32)
    assert "stages.2.clusters.1" in row["taps"]
    assert "3.3 M" in text
    assert "stages.*.clusters.*  (6)" in text


@pytest.mark.parametrize("width", [80, 120])
def test_list_fits_the_terminal_and_counts_nothing(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(counting, "figures_of", None)  # calling it would fail
    rows = info()
    out, progress = capsys.readouterr()
    assert list(rows) == list_models()
    assert re.findall(r"^ (\w+) ", out, re.M)[1:] == list_models(), "a name is cut"
    assert max(map(len, out.splitlines())) <= width
    assert progress == ""
    assert ("fb_in1k +2" in out) == (width == 120)


def test_list_at_another_size_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    rows = info(filter="paca_b0_cifar*", size=64)
    assert rows["paca_b0_cifar"]["macs"] > 3 * info(filter="paca_b0_cifar")["paca_b0_cifar"]["macs"]
    assert {row["size"] for row in rows.values()} == {(64, 64)}
    assert "3/3 models" in capsys.readouterr().err


def test_markdown_table(capsys: pytest.CaptureFixture[str]) -> None:
    info(markdown=True, filter="paca_b0*")
    lines = capsys.readouterr().out.strip().split("\n")
    assert lines[0].startswith("| model | params")
    assert len(lines) == 2 + 6
    assert len({line.count("|") for line in lines}) == 1


def test_any_timm_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert info("resnet18")["resnet18"]["macs"] == pytest.approx(1.81e9, rel=0.01)
    text = capsys.readouterr().out
    assert "not one of our models" in text
    assert "Arguments" not in text


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(("name", "setting"), [("partialformer_b0", "stem_stride=1"), ("xcit_nano_12_p16", "patch=4")])
def test_the_setting_for_small_images_is_found(
    name: str, setting: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    info(name)
    text = capsys.readouterr().out
    assert f"For images of about 32x32 pixels: {setting}." in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text


def test_other_arguments_change_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    plain = info("xcit_nano_12_p16", size=32)["xcit_nano_12_p16"]
    fine = info("xcit_nano_12_p16", size=32, model_args=("patch=4",))["xcit_nano_12_p16"]
    assert fine["strides"] == (4, 4, 4, 4)
    assert fine["macs"] > 8 * plain["macs"]
    assert fine["arguments"]["patch"].value == 4
    default_size = info("xcit_nano_12_p16", model_args=("patch=8",))["xcit_nano_12_p16"]
    assert default_size["macs"] == counting.read_table()["xcit_nano_12_p8"]["macs"]
    with pytest.raises(InputError, match="accepted: 16, 8, or 4"):
        info("xcit_nano_12_p16", model_args=("patch=5",))
    with pytest.raises(InputError, match="unknown MAT argument 'clusters'; nearest:"):
        info("mat_1", model_args=("clusters=3",))
    with pytest.raises(InputError, match=r"test_vit clusters=3 cannot be built \(.*; correct --model-args"):
        info("test_vit", model_args=("clusters=3",))


def test_scaling_of_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    row = info("paca_b0", scaling=True, model_args=("depths=(1,1,1,1)",))["paca_b0"]
    text = capsys.readouterr().out
    assert list(row["macs"]) == [256, 512, 1024, 2048]
    assert "stages.3.blocks.*.attention" in text
    assert "everything else" in text
    assert "PaCa  Linear where" in text
    assert f"{row['exponent']:.3f}" in text


@pytest.fixture
def half_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model's work is n + n² for n squares of 256x256 pixels, in billions."""
    squares = {256: 1, 512: 4, 1024: 16, 2048: 64}
    work = {size: {"": 10**9 * (n + n * n)} for size, n in squares.items()}
    # By its module: vitreous.info is the function.
    monkeypatch.setattr(sys.modules["vitreous.info"], "work_at", lambda model, size: work[size])


@pytest.mark.parametrize("width", [80, 120])
def test_scaling_of_all_families(
    width: int, half_quadratic: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    rows = info(scaling=True)
    out, progress = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= width
    assert re.search(r"paca_tiny +2\.00 +20\.0 +272 +4160 +1\.\d{3} +1\.967 *\n", out)  # log 4160/272 to the base 4
    assert "partialformer_b1 max_foreground=64" in rows
    for family in ("PaCa", "XCiT", "EMSNet", "MAT", "PartialFormer", "VisionTransformer"):
        assert len(re.findall(rf"^ {family} ", out, re.M)) == 1
    assert f"{4 * len(rows)}/{4 * len(rows)} passes" in progress


def test_scaling_of_some_models_as_markdown(half_quadratic: None, capsys: pytest.CaptureFixture[str]) -> None:
    info(scaling=True, markdown=True, filter="xcit_nano*")
    lines = capsys.readouterr().out.strip().split("\n")
    assert lines[0] == "| model | 256 | 512 | 1024 | 2048 | exponent | last |"
    assert lines[2].startswith("| `xcit_nano_12_p16` | 2.00 | 20.0 | 272 | 4160 | 1.")
    assert len(lines) == 2 + 2


def test_unknown_names() -> None:
    with pytest.raises(InputError, match="nearest: paca_tiny"):
        info("paca_tiyn")
    with pytest.raises(InputError, match="no model matches"):
        info(filter="nothing*")
    with pytest.raises(InputError, match="number of pixels"):
        info("paca_b0", size=-3)


def test_options_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--markdown is for the list"):
        info("paca_b0", markdown=True)
    with pytest.raises(InputError, match="--filter"):
        info("paca_b0", filter="paca*")
    with pytest.raises(InputError, match="leave out --size 512"):
        info("paca_b0", scaling=True, size=512)
    with pytest.raises(InputError, match="for one model"):
        info(model_args=("stem_stride=2",))
    with pytest.raises(InputError, match="has its own"):
        info(save_tiny_model(tmp_path / "best"), model_args=("stem_stride=2",))


def test_run_and_model_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_tiny_model(tmp_path / "best")
    trained = load_model(folder)
    for source in (folder, str(tmp_path)):
        row = info(source)[source]
        assert row["params"] == sum(p.numel() for p in trained.model.parameters())
        assert (row["size"], row["channels"]) == ((64, 64), (8, 16, 24, 32))
        assert row["arguments"]["dims"].value == (8, 16, 24, 32)
        assert row["arguments"]["num_classes"].value == 10
        assert row["top1"] is None
        assert "heart" in capsys.readouterr().out
    assert info(folder, size=128)[folder]["macs"] > row["macs"]
    with pytest.raises(InputError, match="there is no folder"):
        info("runs/absent")


def test_json_holds_what_is_returned(tmp_path: Path) -> None:
    rows = info(filter="paca_b0*", json=tmp_path / "models.json")
    assert json.loads((tmp_path / "models.json").read_text()).keys() == rows.keys()
    with pytest.raises(InputError, match="--json"):
        info(filter="paca_b0*", json=tmp_path)
