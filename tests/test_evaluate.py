import csv
import json
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image

from tests.support.tiny_model import save_tiny_model
from vitreous.data.shapes.samples import CATEGORIES
from vitreous.data.source import open_data
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.evaluate import evaluate
from vitreous.metrics.accuracy import DetailedMetrics
from vitreous.predict import predict
from vitreous.reports.evaluation import MOST_ROWS, Evaluation, Speed, class_tables, draw_evaluation, evaluation_tables
from vitreous.runs.model_folder import load_model, save_model
from vitreous.runs.run_folder import read_metrics
from vitreous.train import train


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
    present = {name: figures["recall"] for name, figures in some.items() if figures["images"]}
    assert present == {name: per_class[name]["recall"] for name in present}
    assert len(present) == 4
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


def test_a_broken_image_is_named_and_is_no_part_of_the_figures(model, tmp_path, capsys):
    root = write_class_folders(tmp_path, 10)
    broken = next((root / "val").glob("*/*.png"))
    broken.write_bytes(b"nothing")
    evaluate(model, str(root), workers=1, device="cpu", json=tmp_path / "r.json")
    found = json.loads((tmp_path / "r.json").read_text())
    assert [item["image"] for item in found["unreadable"]] == [broken.relative_to(root).as_posix()]
    assert found["images"] == 9
    assert "could not be read" in capsys.readouterr().out


def test_bad_options_are_refused_before_the_work(tmp_path):
    with pytest.raises(InputError, match="--workers -1"):
        evaluate("no_such_model", "shapes", workers=-1)
    with pytest.raises(InputError, match="/proc/nope/x"):
        evaluate("no_such_model", "shapes", json=Path("/proc/nope/x"))


def test_count_of_a_folder_is_refused(model, tmp_path):
    with pytest.raises(InputError, match="only the number of embedded shapes can be chosen"):
        evaluate(model, str(write_class_folders(tmp_path, 10)), count=3, workers=0, device="cpu")


def test_class_names_are_shown_as_they_are(tmp_path, capsys):
    root = write_class_folders(tmp_path, 10, rename=lambda name: f"[bold]{name}|*")
    train(
        "test_convnext", str(_with_train(root)), out=tmp_path / "run", size=32, epochs=1, batch_size=8, workers=0,
        device="cpu",
    )  # fmt: skip
    capsys.readouterr()
    evaluate(str(tmp_path / "run"), str(root), workers=0, device="cpu", markdown=tmp_path / "r.md")
    assert "[bold]heart|*" in capsys.readouterr().out
    assert "| \\[bold\\]heart\\|\\* | 1 |" in (tmp_path / "r.md").read_text()


def _with_train(root: Path) -> Path:
    (root / "train").symlink_to(root / "val", target_is_directory=True)
    return root


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("evaluation") / "out"
    evaluate(model, "shapes", count=30, sizes=(48, 64), worst=4, workers=0, device="cpu", out=out)
    return out


def test_a_folder_holds_figures_tables_and_pictures(folder):
    content = json.loads((folder / "evaluation.json").read_text())
    assert {path.name for path in folder.iterdir()} == {"evaluation.json", *content["files"]}
    assert set(content["files"]) == {
        "confusion.png", "confusion.csv", "reliability.png", "sizes.png", "mistakes.png", "report.md",
        "evaluation.html",
    }  # fmt: skip
    for name in content["files"]:
        if name.endswith(".png"):
            assert min(Image.open(folder / name).size) > 300
            assert f"({name})" in (folder / "report.md").read_text()
    assert content["speed"]["precision"] == "fp32"
    assert content["speed"]["threads"] == torch.get_num_threads()
    assert {"loss", "top1", "top5", "ece", "images_per_second", "versions"} <= set(content)


def test_confusion_matrix_classes_and_accuracy_tell_the_same(folder):
    content = json.loads((folder / "evaluation.json").read_text())
    header, *rows = csv.reader((folder / "confusion.csv").open())
    counts = {name: dict(zip(header[1:], map(int, row), strict=True)) for name, *row in rows}
    assert sum(counts[name][name] for name in counts) / 30 == content["top1"]
    for name, figures in content["per_class"].items():
        assert figures["images"] == sum(counts[name].values()) == 3
        assert figures["recall"] == counts[name][name] / 3
        answered = sum(row[name] for row in counts.values())
        assert figures["precision"] == (counts[name][name] / answered if answered else None)
    listed = {true: {a: n for a, n in row.items() if n} for true, row in counts.items()}
    assert listed == content["confusion"]
    assert sum(row["images"] for row in content["reliability"]) == 30


def test_worst_mistakes_are_named_as_other_verbs_take_them(folder, model):
    worst = json.loads((folder / "evaluation.json").read_text())["worst"]
    assert [item["confidence"] for item in worst] == sorted((item["confidence"] for item in worst), reverse=True)
    assert len(worst) == 4
    (found,) = predict(model, (worst[0]["image"],), device="cpu")
    best = found["predictions"][0]
    assert best["class"] == worst[0]["answer"] != worst[0]["true"]
    assert best["probability"] == pytest.approx(worst[0]["confidence"], rel=1e-4)  # alone in its batch


def test_worst_mistakes_in_files_are_paths(model, tmp_path):
    root = write_class_folders(tmp_path, 20)
    evaluate(model, str(root), workers=0, device="cpu", json=tmp_path / "r.json", worst=3)
    worst = json.loads((tmp_path / "r.json").read_text())["worst"]
    assert len(worst) == 3
    assert all(Path(item["image"]).is_file() and Path(item["image"]).parent.name == item["true"] for item in worst)


def test_sizes_are_those_of_single_evaluations(folder, model):
    content = json.loads((folder / "evaluation.json").read_text())
    at_48, at_64 = content["sizes"]
    assert (at_48["size"], at_64["size"]) == (48, 64)
    assert at_64["loss"] == content["loss"], "the model's own size is not measured twice"
    alone = evaluate(model, "shapes", count=30, size=48, workers=0, device="cpu")
    assert (at_48["top1"], at_48["loss"]) == (alone["top1"], pytest.approx(alone["loss"], rel=1e-5))


def test_a_size_the_model_cannot_take_is_refused_before_the_work(model, tmp_path, capsys):
    name, args = "vit_tiny_patch16_224", dict(img_size=64, depth=1)
    vit = timm.create_model(name, num_classes=10, **args)
    arguments = dict(name=name, model_args=args, task="classify", preprocess=Preprocess((64, 64)))
    save_model(tmp_path / "vit", vit, classes=tuple(CATEGORIES), **arguments)
    with pytest.raises(InputError, match=r"cannot take images of 96x96 pixels .*trained with 64x64"):
        evaluate(
            str(tmp_path / "vit"), "shapes", count=10, sizes=(64, 96), workers=0, device="cpu", out=tmp_path / "out"
        )
    with pytest.raises(InputError, match="cannot take images of 8x8 pixels"):
        evaluate(model, "shapes", count=10, sizes=(8,), workers=0, device="cpu")
    assert "evaluate" not in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_weights_that_are_no_numbers_are_told(model, tmp_path):
    trained = load_model(model)
    for parameter in trained.model.parameters():
        parameter.data.fill_(3e38)  # finite, but sums of it are not
    config = json.loads((Path(model) / "config.json").read_text())
    save_model(
        tmp_path / "nan", trained.model, name="paca_tiny", model_args=config["model_args"], task="classify",
        classes=trained.classes, preprocess=trained.preprocess,
    )  # fmt: skip
    with pytest.raises(InputError, match="predicts NaN"):
        evaluate(str(tmp_path / "nan"), "shapes", count=10, workers=0, device="cpu", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_mixed_precision_is_recorded(model, tmp_path):
    evaluate(model, "shapes", count=10, amp="bf16", workers=0, device="cpu", json=tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["speed"]["precision"] == "bf16"


def test_a_perfect_model_has_no_mistakes_to_show():
    details = DetailedMetrics(("a", "b"), worst=3)
    prediction = {"labels": torch.tensor([1, 0]), "scores": torch.tensor([0.9, 0.1])}
    details.update([prediction], {"labels": torch.tensor([1]), "indices": torch.tensor([0])})
    speed = Speed(1.0, 1, "cpu", "fp32", 1, 0)
    found = Evaluation("m", "d", "val", 1, (8, 8), details.compute(), speed, (), details, ())
    assert set(draw_evaluation(found)) == {"confusion.png", "reliability.png"}
    assert [grid.title for grid in evaluation_tables(found)] == ["m at 8 x 8", "classes"]


def test_of_many_classes_the_console_shows_the_worst():
    details = DetailedMetrics(tuple(f"class {i:03}" for i in range(200)), worst=0)
    answers = [{"labels": torch.tensor([i if i % 50 else 1]), "scores": torch.tensor([0.5])} for i in range(200)]
    details.update(answers, {"labels": torch.arange(200), "indices": torch.arange(200)})
    shown, _ = class_tables(details, MOST_ROWS)
    assert shown.title == "classes with the lowest recall, of 200"
    assert [row[0] for row in shown.rows[:5]] == ["class 000", "class 050", "class 100", "class 150", "class 001"]
    assert len(class_tables(details, None)[0].rows) == 200


def test_two_results_do_not_share_a_place(tmp_path):
    with pytest.raises(InputError, match=r"both name .*figures"):
        evaluate("no-such-run", "shapes", json=tmp_path / "figures", markdown=tmp_path / "figures")
    assert not list(tmp_path.iterdir())
