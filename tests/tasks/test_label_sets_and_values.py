"""Several labels for a picture, and numbers: learned by heart, evaluated, told, explained; and what is refused."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from tests.support.tiny_runs import TINY_PACA
from vitreous.data.source import open_data
from vitreous.errors import InputError
from vitreous.metrics.label_sets import LabelSetAccuracy, average_precision
from vitreous.metrics.regression import RegressionErrors
from vitreous.runs.model_folder import load_model
from vitreous.serve import open_explorer
from vitreous.tasks.base import load_task
from vitreous.training.recipe import with_recipe

QUICK = TINY_PACA | dict(
    size=32, epochs=12, batch_size=8, lr=5e-3, warmup_epochs=1.0, drop_path=0.0, weight_decay=0.0, scale=1.0, flip=0.0,
    label_smoothing=0.0, workers=0, device="cpu",
)  # fmt: skip
COLOURS = {"red": (0, 230), "green": (1, 230), "blue": (2, 230)}


def coloured(root, number: int) -> list[str]:
    """A picture of some colours, and which."""
    pixels, shown = np.zeros((32, 32, 3), np.uint8), []
    for place, (name, (channel, value)) in enumerate(COLOURS.items()):
        if number >> place & 1:
            pixels[..., channel] = value
            shown.append(name)
    Image.fromarray(pixels).save(root / f"{number}.png")
    return shown


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    root = tmp_path_factory.mktemp("sets")
    rows = [
        f"{number}.png,{';'.join(coloured(root, number))},{split}" for split in ("train", "val") for number in range(8)
    ]
    (root / "sets.csv").write_text("\n".join(["path,label,split", *rows]))
    return str(root / "sets.csv")


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    root, rows = tmp_path_factory.mktemp("values"), []
    for number in range(8):
        Image.new("RGB", (32, 32), (30 * number, 30 * number, 30 * number)).save(root / f"{number}.png")
        rows += [f"{number}.png,{100 + 2.5 * number},{split}" for split in ("train", "val")]
    (root / "ages.csv").write_text("\n".join(["image,score,split", *rows]))
    return str(root / "ages.csv")


def test_label_sets_are_learned_told_and_explained(sets, tmp_path, capsys):
    run = str(vitreous.train(data=sets, task="multilabel", out=tmp_path / "run", **QUICK))
    figures = vitreous.evaluate(run, sets, workers=0)
    assert figures["mAP"] > 0.9
    trained = load_model(run)
    assert trained.classes == ("blue", "green", "red")
    found = trained.predict(np.full((32, 32, 3), (230, 0, 230), np.uint8))
    assert found.to_dict()["labels"] == found.names
    assert sum(entry["probability"] for entry in found.to_dict()["predictions"]) != pytest.approx(1)
    report = vitreous.check(sets, task="multilabel", workers=0)
    assert report.counts["train"] == {"blue": 4, "green": 4, "red": 4}
    picture = sets.replace("sets.csv", "5.png")
    explorer = open_explorer(run)
    seen = explorer.see(Image.open(picture).convert("RGB"), "5.png", None)
    assert sorted(finding["short"] for finding, _ in seen.findings) == ["blue", "green", "red"]
    (row,) = vitreous.predict(run, picture, min_score=0.0)
    assert sorted(row["labels"]) == ["blue", "green", "red"]
    report = vitreous.explain(run, picture, label="red", method="grad_cam", out=tmp_path / "why")
    told = json.loads(report.with_name("explanation.json").read_text())["images"][0]
    assert told["watched"].startswith("red ")
    with pytest.raises(InputError, match=r"--label pink|unknown class 'pink'; nearest"):
        vitreous.explain(run, picture, label="pink", out=tmp_path / "other")
    with pytest.raises(InputError, match="was trained for the task 'multilabel'"):
        vitreous.train(
            "paca_tiny", "shapes", teacher=run, out=tmp_path / "taught", epochs=1, train_count=4, val_count=2
        )


def test_values_are_learned_told_and_explained(values, tmp_path):
    settings = {name: value for name, value in QUICK.items() if name != "label_smoothing"}
    run = str(vitreous.train(data=values, task="regress", out=tmp_path / "run", **settings))
    figures = vitreous.evaluate(run, values, workers=0)
    assert figures["R2"] > 0.5
    assert figures["MAE"] < 6
    assert vitreous.check(values, task="regress", workers=0).counts == {"train": {"value": 8}, "val": {"value": 8}}
    low, high = (vitreous.predict(run, values.replace("ages.csv", f"{number}.png")) for number in (0, 7))
    assert low[0]["predictions"][0]["value"] < high[0]["predictions"][0]["value"]
    report = vitreous.explain(run, values.replace("ages.csv", "7.png"), method="grad_cam", out=tmp_path / "why")
    assert report.is_file()
    card = (tmp_path / "run" / "best" / "README.md").read_text()
    assert "vitreous" in card


def test_recipes_for_classification_fit_but_for_what_means_nothing():
    labels, number = (with_recipe("paca_b0", "x.csv", task=task, recipe="quick") for task in ("multilabel", "regress"))
    assert (labels.label_smoothing, labels.lr) == (0.05, 1.5e-3)
    assert number.lr == 1.5e-3
    assert "label_smoothing" not in number.origins
    with pytest.raises(InputError, match=r"label_smoothing 0\.05 cannot be used"):
        with_recipe("paca_b0", "x.csv", task="detect", recipe="quick")


def test_class_folders_that_share_pictures(tmp_path):
    kind = load_task("multilabel")
    for name in ("cat/1.png", "dog/3.png"):
        (tmp_path / "apart" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), "red").save(tmp_path / "apart" / name)
    with pytest.raises(InputError, match="it looks like class folders without splits; use --task classify"):
        open_data(str(tmp_path / "apart"), "train", size=(8, 8), targets="label_sets", wording=kind.wording())
    tmp_path = tmp_path / "shared"
    for name in ("cat/1.png", "dog/1.png", "cat/2.png", "dog/3.png", "cat/4.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (int(name[4]) * 50, 0, 0)).save(tmp_path / name)
    splits = [open_data(str(tmp_path), split, size=(8, 8), targets="label_sets") for split in ("train", "val")]
    known = {part.name(i)[4:]: part.target(i)["label_set"] for part in splits for i in range(len(part))}
    assert known == {"1.png": (0, 1), "2.png": (0,), "3.png": (1,), "4.png": (0,)}
    Image.new("RGB", (9, 9), "blue").save(tmp_path / "dog" / "2.png")
    with pytest.raises(InputError, match=r"have one name, which makes them one picture of two classes, but differ"):
        open_data(str(tmp_path), "train", size=(8, 8), targets="label_sets")


@pytest.mark.parametrize(
    ("text", "task", "says"),
    [
        (
            "path,label\n1.png,a;b\n2.png,a\n",
            "classify",
            "it looks like table of several labels; use --task multilabel",
        ),
        ("path,label\n1.png,1.5\n2.png,2\n", "classify", "it looks like table of numbers; use --task regress"),
        ("path,value\n1.png,3\n2.png,old\n", "regress", r"line 3 has 'old' in the column value, which is no number"),
        ("path,label\n1.png,3\n2.png,old\n", "regress", r"line 3 has 'old' in the column label, which is no number"),
        ("path,value\n1.png,3\n2.png,1e99\n", "regress", r"line 3 has '1e99' in the column value, which is no number"),
        ("path,label\n1.png,\n2.png,\n", "multilabel", "has no label in any row"),
    ],
)
def test_other_tasks_and_other_cells_are_told(tmp_path, text, task, says):
    for number in (1, 2):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "photos.csv").write_text(text)
    kind = load_task(task)
    with pytest.raises(InputError, match=says):
        open_data(str(tmp_path / "photos.csv"), "train", size=(8, 8), targets=kind.targets, wording=kind.wording())


def test_figures_of_label_sets():
    metric, halves = LabelSetAccuracy(), [LabelSetAccuracy(), LabelSetAccuracy()]
    scores = torch.tensor([[0.9, 0.2], [0.8, 0.7], [0.3, 0.6], [0.1, 0.1]])
    present = torch.tensor([[1.0, 0], [0, 1], [1, 1], [0, 0]])
    metric.update([{"probabilities": row} for row in scores], {"present": present})
    for part, half in zip((slice(2), slice(2, 4)), halves, strict=True):
        half.update([{"probabilities": row} for row in scores[part]], {"present": present[part]})
    halves[0].merge(halves[1])
    assert metric.compute() == halves[0].compute()
    assert metric.compute() == pytest.approx({"mAP": ((1 + 2 / 3) / 2 + 1) / 2, "F1": 6 / 8, "exact": 0.5})
    same = np.float32([0.5, 0.5, 0.5, 0.5])
    assert average_precision(same, np.array([True, False, False, False])) == 0.25, "ties have no order"


def test_figures_of_numbers():
    metric = RegressionErrors()
    metric.update(
        [{"value": torch.tensor(value)} for value in (1.0, 2.0, 6.0)], {"value": torch.tensor([1.0, 3.0, 5.0])}
    )
    assert metric.compute() == pytest.approx({"R2": 1 - 2 / 8, "MAE": 2 / 3, "RMSE": (2 / 3) ** 0.5})
