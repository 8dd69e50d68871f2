"""Metrics elsewhere: Weights & Biases without a network, MLflow in a folder, and what happens when they fail."""

import json
import re
import sys
from pathlib import Path

import mlflow
import pytest
import wandb

from vitreous.errors import InputError
from vitreous.runs import trackers
from vitreous.runs.run_folder import RunFolder
from vitreous.runs.trackers import MLflow, RemoteTracker, WeightsAndBiases


class Remembered(RemoteTracker):
    """A server in memory: run -> lines."""

    option = "mlflow"
    runs: dict[str, list] = {}  # noqa: RUF012
    fails = False

    def begin(self, folder, arguments, known):
        return known if known in self.runs else f"run {len(self.runs)}"

    def send(self, line):
        if self.fails:
            raise OSError("gone\nfor good")
        self.runs.setdefault(self.identity, []).append(line["loss"])

    def end(self):
        pass


@pytest.fixture
def server():
    Remembered.runs, Remembered.fails = {}, False
    return Remembered


def run_with(path, tracker, *losses):
    with RunFolder(path) as run:
        (path / "run.json").write_text("{}")
        run.follow(tracker(path, {"lr": 0.1}))
        for loss in losses:
            run.log(step=run.metric_lines + 1, epoch=0, split="train", loss=loss)


def test_a_continued_run_sends_no_line_twice(server, tmp_path):
    run_with(tmp_path, server, 1.0, 2.0)
    run_with(tmp_path, server, 3.0)
    assert server.runs == {"run 0": [1.0, 2.0, 3.0]}
    with RunFolder(tmp_path) as run:
        run.cut_metrics(1)  # the checkpoint was earlier: two lines are measured again
        run.follow(server(tmp_path, {}))
        for loss in (2.0, 3.0, 4.0):
            run.log(step=9, loss=loss)
    assert server.runs == {"run 0": [1.0, 2.0, 3.0, 4.0]}


def test_a_run_that_was_deleted_there_is_sent_again(server, tmp_path):
    run_with(tmp_path, server, 1.0)
    server.runs.clear()
    server.runs["of somebody else"] = []
    run_with(tmp_path, server, 2.0)
    assert server.runs["run 1"] == [1.0, 2.0]


def test_a_server_that_fails_is_told_once_and_the_run_goes_on(server, tmp_path, caplog):
    server.fails = True
    run_with(tmp_path, server, 1.0, 2.0)
    assert caplog.text.count("--mlflow cannot be reached any more (gone)") == 1
    server.fails = False
    run_with(tmp_path, server, 3.0)
    assert server.runs == {"run 0": [1.0, 2.0, 3.0]}, "the same command sends the rest"


def test_mlflow_keeps_every_number_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "cats")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    try:
        run_with(tmp_path / "run", MLflow, 1.0, 2.0)
        run_with(tmp_path / "run", MLflow, 3.0)
        client = mlflow.MlflowClient()
        (found,) = client.search_runs([client.get_experiment_by_name("cats").experiment_id])
        history = client.get_metric_history(found.info.run_id, "train/loss")
        assert [(one.step, one.value) for one in history] == [(1, 1.0), (2, 2.0), (3, 3.0)]
        assert found.data.params == {"lr": "0.1"}
        assert found.info.status == "FINISHED"
        assert found.info.run_name == "run"
    finally:
        mlflow.set_tracking_uri(None)


def losses_in(file: Path) -> set[float]:
    """Of the records that `wandb sync` would send: each name is followed by a field with its value as JSON."""
    return {float(text) for text in re.findall(rb"train/loss\x82\x01.([\d.]+)", file.read_bytes())}


@pytest.mark.system
def test_weights_and_biases_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    wandb.teardown()
    run_with(tmp_path, WeightsAndBiases, 1.0, 2.0)
    wandb.teardown()
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert losses_in(file) == {1.0, 2.0}
    assert json.loads((tmp_path / "wandb.json").read_text())["lines"] == 2


def test_who_is_not_logged_in_is_told_before_the_work(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "nothing"))
    wandb.teardown()
    with pytest.raises(InputError, match="run wandb login or set WANDB_API_KEY, or set WANDB_MODE=offline"):
        trackers.require_wandb()


def test_a_server_that_is_not_there_is_told_before_the_work():
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    try:
        with pytest.raises(InputError, match=r"the server at http://127\.0\.0\.1:9 does not answer .*mlflow server"):
            trackers.require_mlflow()
    finally:
        mlflow.set_tracking_uri(None)


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_a_missing_package_is_named_with_its_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"--{package} needs the package {package}: .*{package}"):
        getattr(trackers, f"require_{package}")()
