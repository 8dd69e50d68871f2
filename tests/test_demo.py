"""`vitreous demo` from start to end, on so little data that it learns nothing but runs in seconds."""

import json

import pytest

from vitreous.demo import demo
from vitreous.evaluate import evaluate


def test_trains_evaluates_explains_and_says_what_next(tmp_path, capsys):
    run = tmp_path / "demo"
    settings = dict(out=run, epochs=1, train_count=64, test_count=16, size=32, explained=2, workers=0)
    report = demo(**settings)
    assert report == run / "explanation" / "report.html"
    assert len(json.loads((run / "explanation" / "explanation.json").read_text())["images"]) == 2
    assert (run / "best" / "model.safetensors").is_file()
    out = capsys.readouterr().out
    assert "of 16 held-out images" in out
    assert str(report) in out
    assert len([line for line in out.splitlines() if line.startswith("  vitreous ")]) == 3

    first = report.read_bytes()
    assert demo(**settings).read_bytes() == first  # a second start finds the trained model


@pytest.mark.slow
def test_the_demo_learns_what_it_claims(tmp_path):
    demo(out=tmp_path / "demo")
    assert evaluate(str(tmp_path / "demo"), "shapes", split="test", count=1000)["top1"] > 0.95
