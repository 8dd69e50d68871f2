"""`evaluate --knn` and `--linear`: of models with and without a classifier, ours and timm's."""

import json

import pytest
import timm
import torch
from safetensors.torch import save_file

from tests.support.ranks import Ranks
from tests.support.tiny_data import as_folders
from tests.support.tiny_model import save_tiny_dense, save_tiny_model
from vitreous.data.source import open_data
from vitreous.embed import embed
from vitreous.errors import InputError
from vitreous.evaluate import evaluate
from vitreous.metrics.neighbours import NeighbourAccuracy, nearest_rows, unit_rows_
from vitreous.train import train

QUICK = dict(workers=0, device="cpu", count=20, train_count=40, neighbours=(1, 10))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def test_neighbours_are_those_of_the_embedded_features(model, tmp_path):
    data = as_folders(tmp_path / "data")
    found = evaluate(
        str(model), str(data), knn=True, neighbours=(1, 10), workers=0, device="cpu", json=tmp_path / "x.json"
    )
    parts = []
    for split in ("train", "val"):
        features = embed(str(model), (str(data),), split=split, out=tmp_path / split)
        images = open_data(str(data), split, size=(32, 32))
        rows = torch.tensor(features.array[:])
        parts.append((unit_rows_(rows), torch.tensor([images.classes.index(label) for label in features.labels])))
    (bank, labels), (rows, truth) = parts
    metric = NeighbourAccuracy(len(images.classes), (1, 10))
    metric.update(nearest_rows(bank, labels, rows, 10), truth)
    for name, value in metric.compute().items():
        assert found[name] == pytest.approx(value)
    stored = json.loads((tmp_path / "x.json").read_text())
    assert stored["knn_10"] == found["knn_10"]
    assert stored["images"] == 20


def test_both_measures_of_a_model_without_labels(tmp_path, capsys):
    run = train(
        "test_efficientnet", "shapes", task="dino", size=32, local_crops=0, epochs=1, batch_size=8, train_count=8,
        val_count=4, head_args=("outputs=8", "hidden=8", "bottleneck=4"), workers=0, device="cpu", out=tmp_path / "run",
    )  # fmt: skip
    assert f"next: vitreous evaluate {run} shapes --knn" in capsys.readouterr().out
    found = evaluate(str(run), "shapes", knn=True, linear=True, linear_epochs=2, out=tmp_path / "out", **QUICK)
    assert {"knn_1", "knn_10", "linear"} <= found.keys()
    assert "| linear |" in (tmp_path / "out" / "report.md").read_text()
    assert "did best on a held-out tenth" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"has no classifier, so that it gives features .* evaluate --knn"):
        evaluate(str(run), "shapes", workers=0)
    assert "without a classifier" in (run / "final" / "README.md").read_text()


def test_models_of_timm_with_and_without_a_classifier(tmp_path):
    torch.manual_seed(0)
    whole = timm.create_model("test_efficientnet", num_classes=3).state_dict()
    headless = {key: value for key, value in whole.items() if not key.startswith("classifier")}
    values = []
    for place, state in enumerate((whole, headless)):
        save_file(state, tmp_path / f"{place}.safetensors")
        file = str(tmp_path / f"{place}.safetensors")
        values.append(evaluate(file, "shapes", knn=True, architecture="test_efficientnet", size=32, **QUICK))
    assert values[0]["knn_10"] == values[1]["knn_10"]


def test_what_has_no_features_or_no_labels_is_refused(model, tmp_path):
    dense = save_tiny_dense(tmp_path / "dense", "segment", ("background", "cat"))
    with pytest.raises(InputError, match="has no pooled features"):
        evaluate(str(dense), "shapes", knn=True, **QUICK)
    with pytest.raises(InputError, match="--sizes is about answers"):
        evaluate(str(model), "shapes", knn=True, sizes=(32,), **QUICK)
    with pytest.raises(InputError, match="--split train given"):
        evaluate(str(model), "shapes", knn=True, split="train", **QUICK)
    with pytest.raises(InputError, match="there is no such folder or file"):
        evaluate(str(model), str(tmp_path / "nothing"), knn=True, workers=0)


@pytest.mark.system
def test_processes_that_share_a_bank_find_the_same(model, tmp_path):
    found = []
    for count in (1, 2):
        words = ["evaluate", str(model), "shapes", "--knn", "--linear", "--linear-epochs", "2", "--count", "21"]
        words += ["--train-count", "45", "--batch-size", "4", "--workers", "0", "--device", "cpu"]
        ranks = Ranks(count, [*words, "--json", str(tmp_path / f"{count}.json")], tmp_path / f"logs-{count}")
        assert ranks.wait() == [0] * count, ranks.said_by_all()
        content = json.loads((tmp_path / f"{count}.json").read_text())
        found.append(
            {name: value for name, value in content.items() if name.startswith("knn")} | {"n": content["images"]}
        )
    assert found[0] == found[1]
