"""Early stopping: after how many epochs, what is left behind, and that a kill at the end changes nothing."""

import pytest

from tests.support.tiny_runs import TINY_PACA_RUN, fingerprint
from vitreous.errors import InputError
from vitreous.runs.run_folder import read_metrics
from vitreous.train import Training, train

# A learning rate so small that nothing is learned: the first epoch stays the best.
STUCK = TINY_PACA_RUN | dict(epochs=9, patience=2, lr=1e-12, min_lr=0.0, train_count=8, val_count=4, warmup_epochs=0.0)


def epochs(out) -> list[int]:
    return [line["epoch"] for line in read_metrics(out) if line["split"] == "val"]


def test_it_stops_and_a_kill_at_the_end_changes_nothing(tmp_path, monkeypatch, capsys):
    out = train(**STUCK, out=tmp_path / "whole")
    assert epochs(out) == [1, 2, 3]
    said = capsys.readouterr().out
    assert f"stopped early: top1 has not risen for 2 epochs; the best was epoch 1, whose weights are in {out}" in said
    train(**STUCK, out=out)
    assert "is finished; nothing to do" in capsys.readouterr().out

    whole, save = fingerprint(out), Training.save_model

    def killed(training: Training, name: str) -> None:
        if name == "final":
            raise KeyboardInterrupt
        save(training, name)

    monkeypatch.setattr(Training, "save_model", killed)
    with pytest.raises(KeyboardInterrupt):
        train(**STUCK, out=tmp_path / "killed")
    monkeypatch.undo()
    assert fingerprint(train(**STUCK, out=tmp_path / "killed")) == whole


def test_without_patience_nothing_stops(tmp_path):
    assert epochs(train(**STUCK | dict(patience=0, epochs=4), out=tmp_path / "run")) == [1, 2, 3, 4]


def test_balanced_classes_and_their_limits(tmp_path, capsys):
    train(**STUCK | dict(epochs=1, balance_classes=True, train_count=30), out=tmp_path / "run")
    assert "groups by class is drawn equally often" in capsys.readouterr().out
    with pytest.raises(InputError, match="left out with balance_groups, one of whose columns may be class"):
        train(**STUCK | dict(balance_classes=True, balance_groups=("class",)), out=tmp_path / "other")
    with pytest.raises(InputError, match=r"class_weights .* it is for --task classify"):
        train(**STUCK | dict(class_weights=("balanced",), task="segment"), out=tmp_path / "other")
