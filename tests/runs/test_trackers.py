import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vitreous.errors import to_install_extra
from vitreous.runs.run_folder import RunFolder, read_metrics
from vitreous.runs.trackers import TensorBoard
from vitreous.train import train


def scalars(folder) -> dict[str, list[tuple[int, float]]]:
    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


class Notes:
    def __init__(self):
        self.lines, self.closed = [], False

    def log(self, line):
        self.lines.append(line)

    def close(self):
        self.closed = True


def test_a_tracker_sees_what_is_in_the_file_and_what_follows(tmp_path):
    notes = Notes()
    with RunFolder(tmp_path) as run:
        run.log(step=1, split="train", loss=3.0)
        run.follow(notes)
        run.log(step=2, split="train", loss=2.0)
    assert notes.lines == read_metrics(tmp_path)
    assert notes.closed


def test_tensorboard_shows_every_number_once_after_a_restart(tmp_path):
    with RunFolder(tmp_path) as run:
        run.follow(TensorBoard(tmp_path / "tensorboard", run.seconds))
        for step in (1, 2, 3):
            run.log(step=step, epoch=1, split="train", loss=float(step), note="not a number")
        run.log(step=3, epoch=1, split="val", top1=0.5)
    with RunFolder(tmp_path) as run:
        run.cut_metrics(2)  # the run goes on from a checkpoint at step 2
        run.follow(TensorBoard(tmp_path / "tensorboard", run.seconds))
        run.log(step=3, epoch=1, split="train", loss=30.0)
    assert scalars(tmp_path / "tensorboard") == {"train/loss": [(1, 1.0), (2, 2.0), (3, 30.0)]}


def test_times_are_those_of_the_measurement(tmp_path):
    board = TensorBoard(tmp_path / "tensorboard", spent=7200.0)
    for step, seconds in ((1, 3600.0), (2, 7200.0)):
        board.log({"step": step, "split": "train", "loss": 1.0, "seconds": seconds})
    board.close()
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    first, second = (event.wall_time for event in found.Scalars("train/loss"))
    assert second - first == pytest.approx(3600)


def test_train_writes_for_tensorboard(tmp_path):
    settings = dict(size=32, epochs=1, batch_size=8, train_count=16, val_count=8, workers=0, device="cpu", log_every=1)
    out = train("test_convnext", "shapes", out=tmp_path / "run", tensorboard=True, **settings)
    lines = read_metrics(out)
    shown = scalars(out / "tensorboard")
    losses = [(line["step"], line["loss"]) for line in lines if line["split"] == "train"]
    assert shown["train/loss"] == [(step, pytest.approx(loss)) for step, loss in losses]
    assert {"train/lr", "train/images_per_second", "val/loss", "val/top1"} <= set(shown)


def test_missing_package_says_what_to_install(tmp_path, monkeypatch, capsys):
    from vitreous_command import main

    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    arguments = ["train", "test_convnext", "shapes", "--out", str(tmp_path / "run"), "--tensorboard"]
    assert main([*arguments, "--train-count", "8", "--val-count", "8", "--workers", "0", "--size", "32"]) == 2
    assert to_install_extra("log") in capsys.readouterr().err
