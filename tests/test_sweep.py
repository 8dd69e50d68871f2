"""The queue of a sweep: what is trained, what is not trained again, and what is left out."""

import json
import sys

import pytest
import yaml

from vitreous.errors import InputError
from vitreous.runs.run_folder import METRICS
from vitreous.runs.trial import done_once
from vitreous.sweep import sweep

ASKED = {"model": "test_convnext", "data": "shapes", "settings": {"epochs": 2}, "search": {"lr": [0.1, 0.2, 0.3]}}


@pytest.fixture
def trained(monkeypatch):
    """Trainings that are only noted: the figure is the learning rate, and 0.3 diverges."""
    calls = []

    def train(model, data, *, out, lr, **settings):
        calls.append({"lr": lr, **settings})
        if lr == 0.3:
            raise InputError("the loss is no number any more")
        out.mkdir(parents=True)
        lines = [
            {"split": "val", "epoch": epoch, "step": epoch, "seconds": 1.5, "top1": lr / epoch} for epoch in (1, 2)
        ]
        (out / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return out

    monkeypatch.setattr(sys.modules["vitreous.sweep"], "train", train)
    return calls


def write(tmp_path, **changes):
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.dump(ASKED | changes))
    return file


def test_the_best_comes_first_and_what_fails_is_told(trained, tmp_path, capsys):
    best = sweep(write(tmp_path), out=tmp_path / "runs")
    told = capsys.readouterr().out
    assert best == tmp_path / "runs" / "001"
    assert "trial 002 is left out: the loss is no number any more" in told
    assert "best: lr 0.2, top1 0.2" in told
    assert "vitreous train test_convnext shapes --epochs 2 --lr 0.2" in told
    result = json.loads((tmp_path / "runs" / "result" / "sweep.json").read_text())
    assert [row["lr"] for row in result["rows"]] == [0.2, 0.1]
    assert result["rows"][0]["epoch"] == 1
    assert {"sweep.md", "sweep.png", "sweep.svg"} == set(result["files"])


def test_what_is_done_is_not_trained_again(trained, tmp_path):
    sweep(write(tmp_path), out=tmp_path / "runs")
    (tmp_path / "runs" / "000" / "trial.json").unlink()  # as if it had been interrupted
    (tmp_path / "runs" / "000" / METRICS).unlink()
    (tmp_path / "runs" / "000").rmdir()
    del trained[:]
    sweep(write(tmp_path), out=tmp_path / "runs")
    assert [call["lr"] for call in trained] == [0.1, 0.3]
    sweep(write(tmp_path, settings={"epochs": 3}, search={"lr": [0.5]}), out=tmp_path / "other")
    assert (tmp_path / "other" / "000").is_dir()


def test_other_settings_in_the_same_folder_are_refused(trained, tmp_path, capsys):
    sweep(write(tmp_path, search={"lr": [0.1]}), out=tmp_path / "runs")
    with pytest.raises(InputError, match="no trial of this round"):
        sweep(write(tmp_path, search={"lr": [0.2]}), out=tmp_path / "runs")
    assert "give another --out" in capsys.readouterr().out


def test_halving_trains_the_best_third_for_longer(trained, tmp_path):
    search = {"lr": {"low": 0.01, "high": 0.29}}
    file = write(tmp_path, method="halving", trials=9, settings={"epochs": 9}, search=search)
    sweep(file, out=tmp_path / "runs")
    by_epochs = {epochs: [c["lr"] for c in trained if c["epochs"] == epochs] for epochs in (1, 3, 9)}
    assert [len(rates) for rates in by_epochs.values()] == [9, 3, 1]
    assert by_epochs[3] == sorted(by_epochs[1], reverse=True)[:3]
    assert by_epochs[9] == [max(by_epochs[1])]
    assert json.loads((tmp_path / "runs" / "result" / "sweep.json").read_text())["rows"][0]["epochs"] == 9


def test_a_dry_run_trains_nothing_and_bad_settings_are_told_before_the_work(trained, tmp_path, capsys):
    sweep(write(tmp_path), out=tmp_path / "runs", dry_run=True)
    assert "000  lr 0.1" in capsys.readouterr().out
    with pytest.raises(InputError, match="epochs"):
        sweep(write(tmp_path, search={"epochs": [1, -1]}, settings={}), out=tmp_path / "runs")
    with pytest.raises(InputError, match="no_such_model"):
        sweep(write(tmp_path, model="no_such_model"), out=tmp_path / "runs")
    assert not trained
    assert not (tmp_path / "runs").exists()


def test_a_trial_is_done_once(tmp_path):
    def once(asked, work):
        return done_once(tmp_path / "t.json", asked, work, option="--runs")

    assert once({"epochs": (1, 2)}, lambda: {"top1": 0.5}) == {"top1": 0.5}
    assert once({"epochs": [1, 2]}, lambda: pytest.fail("again")) == {"top1": 0.5}
    with pytest.raises(InputError, match="give another --runs"):
        once({"epochs": [3]}, dict)
    (tmp_path / "t.json").write_text("{")
    assert once({"epochs": [3]}, lambda: {"top1": 0.7}) == {"top1": 0.7}
