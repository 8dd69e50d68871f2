"""Cross-validation: every picture is held out once, copies stay together, and what is done is not done again."""

import json
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

from vitreous.errors import InputError
from vitreous.folds import folds
from vitreous.runs.run_folder import METRICS
from vitreous.training.folding import fold_numbers
from vitreous_command import main


@pytest.fixture
def photos(tmp_path):
    """Two classes of seven pictures; one is there twice."""
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(7):
            pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    shutil.copy(tmp_path / "photos" / "cat" / "0.png", tmp_path / "photos" / "cat" / "copy.png")
    return tmp_path / "photos"


@pytest.fixture
def trained(monkeypatch):
    """Trainings that are only noted; the figure of fold 1 is 0.1, that of fold 2 is 0.2, …"""
    calls = []

    def train(model, data, *, out, **settings):
        calls.append((data, settings))
        out.mkdir(parents=True)
        line = {"split": "val", "epoch": 2, "step": 1, "seconds": 1.0, "top1": int(data[-1]) / 10}
        (out / METRICS).write_text(json.dumps(line) + "\n")

    monkeypatch.setattr(sys.modules["vitreous.folds"], "train", train)
    return calls


def test_training_in_folds_is_this_verb(photos, trained, tmp_path, capsys):
    for option in (["--folds", "2"], ["--folds=2"]):
        out = tmp_path / option[0]
        assert main(["train", "test_convnext", str(photos), *option, "--epochs", "2", "--out", str(out)]) == 0
        assert len(list((out / "data").glob("fold_*"))) == 2
    assert main(["train", "test_convnext", str(photos), "--folds", "1"]) == 2
    assert "--folds 1 cannot be used" in capsys.readouterr().err


def test_each_picture_is_held_out_once(photos, trained, tmp_path, capsys):
    found = folds("test_convnext", str(photos), folds=3, epochs=2, out=tmp_path / "runs")
    assert found == {"mean": pytest.approx(0.2), "deviation": pytest.approx(0.1), "lowest": 0.1, "highest": 0.3}
    assert [settings["epochs"] for _, settings in trained] == [2, 2, 2]
    held = []
    for number in (1, 2, 3):
        fold = tmp_path / "runs" / "data" / f"fold_{number}"
        val = {file.name for file in fold.glob("val/*/*")}
        assert not val & {file.name for file in fold.glob("train/*/*")}
        assert len(list(fold.glob("*/*/*"))) == 15
        held += sorted(val)
        contents = {kind: {f.read_bytes() for f in fold.glob(f"{kind}/*/*")} for kind in ("train", "val")}
        assert not contents["train"] & contents["val"], "copies stay on one side"
    assert len(held) == len(set(held)) == 15
    assert "standard deviation 10.00%" in capsys.readouterr().out


def test_what_is_done_is_not_done_again(photos, trained, tmp_path):
    folds("test_convnext", str(photos), folds=2, out=tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "fold_2")
    folds("test_convnext", str(photos), folds=2, out=tmp_path / "runs")
    assert [data[-6:] for data, _ in trained] == ["fold_1", "fold_2", "fold_2"]
    with pytest.raises(InputError, match="holds other folds"):
        folds("test_convnext", str(photos), folds=3, out=tmp_path / "runs")
    Image.new("RGB", (16, 16)).save(photos / "cat" / "new.png")
    with pytest.raises(InputError, match="the data have changed since"):
        folds("test_convnext", str(photos), folds=2, out=tmp_path / "runs")


def test_bad_input_is_one_line_and_leaves_nothing(photos, trained, tmp_path):
    out = tmp_path / "runs"
    for data, options, said in (
        (photos, {"folds": 1}, "--folds 1 cannot be used"),
        (photos, {"folds": 8}, "the class 'cat' has 7 different pictures, and 8 folds need as many"),
        ("shapes", {}, "has splits of its own"),
        (photos, {"epochs": -1}, "epochs"),
        (tmp_path / "nothing", {}, "nothing"),
    ):
        with pytest.raises(InputError, match=said):
            folds("test_convnext", str(data), out=out, **options)
    assert not trained
    assert not out.exists()
    (out / "data").mkdir(parents=True)
    (out / "data" / "mine.txt").write_text("precious")
    with pytest.raises(InputError, match="holds other files"):
        folds("test_convnext", str(photos), out=out)
    assert (out / "data" / "mine.txt").is_file()


def test_classes_are_divided_evenly():
    places = np.random.default_rng(0).random(50).tolist()
    classes = ["a"] * 20 + ["b"] * 30
    held = fold_numbers(places, classes, 5)
    for label, count in (("a", 4), ("b", 6)):
        found = [number for number, name in zip(held, classes, strict=True) if name == label]
        assert [found.count(number) for number in range(5)] == [count] * 5
