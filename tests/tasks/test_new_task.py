"""A task is one file: with `tests/support/count_task.py` beside ours, every verb knows how to count."""

import json
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import vitreous.tasks
from tests.support import count_task
from tests.support.explorer import HOST, application, png
from tests.support.tiny_model import MODEL_ARGS
from vitreous.data.pictures import find_pictures
from vitreous.evaluate import evaluate
from vitreous.explain import explain
from vitreous.predict import predict
from vitreous.runs.model_folder import load_model
from vitreous.tasks.base import load_tasks
from vitreous.train import train


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    shutil.copy(count_task.__file__, folder / "count.py")
    vitreous.tasks.__path__.append(str(folder))
    yield train(
        "paca_tiny", "shapes", task="count", model_args=tuple(f"{name}={value}" for name, value in MODEL_ARGS.items()),
        size=64, train_count=8, val_count=4, batch_size=4, epochs=2, workers=0, device="cpu", log_every=1,
        out=tmp_path_factory.mktemp("runs") / "count",
    )  # fmt: skip
    vitreous.tasks.__path__.remove(str(folder))


def test_it_is_found_by_being_there(run):
    assert [*load_tasks()] == ["classify", "detect", "dino", "keypoints", "multilabel", "regress", "segment", "count"]
    assert json.loads((run / "final" / "config.json").read_text())["vitreous"]["task"] == "count"


def test_it_is_evaluated(run, tmp_path):
    found = evaluate(str(run), "shapes", count=6, workers=0, device="cpu", out=tmp_path / "out", sizes=(96,))
    assert 0 <= found["exact"] <= 1
    assert "| exact |" in (tmp_path / "out" / "report.md").read_text()


def test_it_predicts(run, tmp_path, capsys):
    rows = predict(str(run), ("shapes:val:0-2",), out=tmp_path / "out", device="cpu")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"predictions.json", *(r["drawing"] for r in rows)}
    assert f"{rows[0]['objects']:.1f} objects" in capsys.readouterr().out
    results = load_model(run).predict(
        [*(one.load() for one in find_pictures(("shapes:val:0-1",), size=(64, 64)))], batch_size=2
    )
    assert [one.objects for one in results] == pytest.approx([row["objects"] for row in rows[:2]], abs=1e-4)


def test_it_is_explained(run, tmp_path):
    methods = ("grad_cam", "centre_blob")
    report = explain(str(run), ("shapes:val:0",), out=tmp_path / "out", method=methods, device="cpu")
    (item,) = json.loads((report.parent / "explanation.json").read_text())["images"]
    assert item["watched"].endswith(" objects")
    assert [method["method"] for method in item["methods"]] == list(methods)
    assert len(item["clusters"]) == 6


def test_it_is_served(run):
    app, _ = application(str(run))
    with TestClient(app, base_url=HOST) as client:
        sent = client.post("/api/images?name=x", content=png(), headers={"content-type": "image/png"}).json()
        told = client.get(f"/api/images/{sent['id']}").json()
        assert [row["name"] for row in told["classes"]] == ["number of objects"]
        without = client.get(f"/api/images/{sent['id']}/stages/3/ablation?off=0,1").json()
        assert without["classes"][0]["before"] == pytest.approx(told["classes"][0]["probability"], abs=1e-6)
        assert client.get(f"/api/images/{sent['id']}/heat?method=grad_cam").status_code == 200
        assert client.get(f"/api/images/{sent['id']}/drawing.png").content.startswith(b"\x89PNG")
