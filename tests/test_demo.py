"""`vitreous demo` from start to end, on so little data that it learns nothing but runs in seconds."""

import json
import shlex

import pytest

from vitreous.demo import LESSONS, demo
from vitreous.evaluate import evaluate
from vitreous.runs.model_folder import load_model
from vitreous.serve import serve
from vitreous_command import as_figures, parse

TINY = dict(epochs=1, train_count=16, test_count=4, size=32, explained=1, workers=0)


def test_trains_evaluates_explains_and_says_what_next(tmp_path, capsys):
    run = tmp_path / "demo"
    settings = TINY | dict(out=run, train_count=64, test_count=16, explained=2)
    report = demo(**settings)
    assert report == run / "explanation" / "report.html"
    assert len(json.loads((run / "explanation" / "explanation.json").read_text())["images"]) == 2
    assert (run / "best" / "model.safetensors").is_file()
    out = capsys.readouterr().out
    assert "on 16 held-out images" in out
    assert str(report) in out
    (offered,) = [line.partition("next: ")[2] for line in out.splitlines() if line.startswith("  next: ")]
    _, verb, *rest = shlex.split(offered)
    assert (verb, rest) == ("serve", [str(run)])
    assert callable(parse(serve, "vitreous serve", rest))

    told = as_figures("demo", report)
    assert told["path"] == str(report)
    again = evaluate(str(run), "shapes", split="test", count=16, workers=0)
    speed = "images_per_second"
    assert told["figures"] | {speed: 0} == again | {speed: 0}

    first = report.read_bytes()
    assert demo(**settings).read_bytes() == first  # a second start finds the trained model


@pytest.mark.parametrize("task", [name for name in LESSONS if name != "classify"])
def test_other_tasks_go_the_same_way(task, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(demo.__globals__, "program", lambda: "vitreous")
    report = demo(task=task, **TINY)
    assert report.is_file()
    assert report.parts[:2] == ("runs", f"demo_{task}")
    assert load_model(f"runs/demo_{task}").task == task
    assert f"\n  next: vitreous serve runs/demo_{task}\n" in capsys.readouterr().out


@pytest.mark.slow
def test_the_demo_learns_what_it_claims(tmp_path):
    demo(out=tmp_path / "demo")
    assert evaluate(str(tmp_path / "demo"), "shapes", split="test", count=1000)["top1"] > 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "metric", "least"), [("detect", "AP50", 0.3), ("segment", "mIoU", 0.3), ("keypoints", "PCK@0.1", 0.8)]
)
def test_demos_of_other_tasks_learn(tmp_path, task, metric, least):
    demo(task=task, out=tmp_path / "demo")
    assert evaluate(str(tmp_path / "demo"), "shapes", split="test", count=200)[metric] > least
