import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console

from tests.tiny_model import save_tiny_model
from vitreous.data.source import open_data
from vitreous.errors import InputError
from vitreous.evaluate import Scores, _table, evaluate
from vitreous.metrics.accuracy import Accuracy
from vitreous.train import train
from vitreous.training.run import read_metrics


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "m")


def write_class_folders(root: Path, count: int, rename=lambda name: name) -> Path:
    images = open_data("shapes", "val", size=(64, 64), count=count)
    for index in range(count):
        image, target = images[index]
        folder = root / "val" / rename(images.classes[target["labels"]])
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"{index}.png")
    return root


def test_figures_equal_those_of_the_last_validation(tmp_path):
    out = train(
        "test_convnext", "shapes", out=tmp_path / "run", size=32, epochs=1, batch_size=16, train_count=32, val_count=30,
        workers=0, device="cpu",
    )  # fmt: skip
    last = read_metrics(out)[-1]
    found = evaluate(str(out), "shapes", count=30, batch_size=7, workers=0, device="cpu")
    assert found["top1"] == last["top1"]
    assert found["loss"] == pytest.approx(last["loss"], rel=1e-5)


def test_table_json_and_files_agree(model, tmp_path, capsys):
    options = dict(workers=0, device="cpu", batch_size=16)
    drawn = evaluate(model, "shapes", count=20, json=tmp_path / "deep" / "r.json", **options)
    shown = capsys.readouterr().out
    assert "embedded shapes" in shown
    assert "top1" in shown
    assert "images/s" in shown
    assert "heart" in shown
    recorded = json.loads((tmp_path / "deep" / "r.json").read_text())
    assert recorded["top1"] == drawn["top1"]
    assert len(recorded["per_class"]) == 10
    from_files = evaluate(model, str(write_class_folders(tmp_path / "data", 20)), **options)
    assert from_files["loss"] == pytest.approx(drawn["loss"], rel=1e-5)


def test_classes_are_matched_by_name(model, tmp_path):
    """Data with some of the classes: their labels differ from the model's, the answers must not."""
    root = write_class_folders(tmp_path, 20)
    for folder in sorted((root / "val").iterdir())[:6]:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    whole = evaluate(model, "shapes", count=20, workers=0, device="cpu", json=tmp_path / "whole.json")
    evaluate(model, str(root), workers=0, device="cpu", json=tmp_path / "some.json")
    per_class = json.loads((tmp_path / "whole.json").read_text())["per_class"]
    some = json.loads((tmp_path / "some.json").read_text())["per_class"]
    assert some == {name: per_class[name] for name in some}
    assert len(some) == 4
    assert "top1" in whole


def test_unknown_classes_and_sizes_are_refused(model, tmp_path):
    root = write_class_folders(tmp_path, 10, rename=lambda name: f"my_{name}")
    with pytest.raises(InputError, match="does not know the class 'my_arrow'"):
        evaluate(model, str(root), workers=0, device="cpu")
    with pytest.raises(InputError, match="batch size 0"):
        evaluate(model, "shapes", batch_size=0)
    with pytest.raises(InputError, match="split 'dev'"):
        evaluate(model, "shapes", split="dev", device="cpu")


def test_another_size(model):
    assert 0 <= evaluate(model, "shapes", count=10, size=48, workers=0, device="cpu")["top1"] <= 1


def test_a_broken_image_is_named(model, tmp_path):
    root = write_class_folders(tmp_path, 10)
    broken = next((root / "val").glob("*/*.png"))
    broken.write_bytes(b"nothing")
    with pytest.raises(InputError, match=broken.name):
        evaluate(model, str(root), workers=1, device="cpu")
    Image.new("RGB", (64, 64)).save(broken)
    evaluate(model, str(root), workers=0, device="cpu")


def test_bad_options_are_refused_before_the_work(tmp_path):
    with pytest.raises(InputError, match="--workers -1"):
        evaluate("no_such_model", "shapes", workers=-1)
    with pytest.raises(InputError, match="/proc/nope/x"):
        evaluate("no_such_model", "shapes", json=Path("/proc/nope/x"))


def test_count_of_a_folder_is_refused(model, tmp_path):
    with pytest.raises(InputError, match="only the number of embedded shapes can be chosen"):
        evaluate(model, str(write_class_folders(tmp_path, 10)), count=3, workers=0, device="cpu")


def test_class_names_are_shown_as_they_are(capsys):
    metric = Accuracy(("[bold]x", ":cat:"))
    metric.update([{"labels": torch.tensor([0, 1])}] * 2, {"labels": torch.tensor([0, 1])})
    Console().print(_table("[red]m", Scores({}, 1.0, metric)))
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("[bold]x", ":cat:", "[red]m"))
