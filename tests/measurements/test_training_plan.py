"""`train --dry-run` and `--batch-size auto`: what is said is what is measured, and nothing is left behind."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import Ranks, arguments
from tests.support.tiny_runs import DENSE, DENSE_TASKS, PLAIN
from vitreous.errors import InputError
from vitreous.files.storage import sha256
from vitreous.measurements import step_memory, training_plan
from vitreous.train import Training, train
from vitreous.training.recipe import load_recipe, with_recipe
from vitreous.training.settings import TrainSettings

UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
RUNS = {name: DENSE | changes for name, changes in DENSE_TASKS.items()}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(training_plan, "MOST_TIMED", 3)
    monkeypatch.chdir(tmp_path)


def amounts(line: str) -> list[float]:
    return [float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.e+]+) ([kMG]B)", line)]


def files_of(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): sha256(path) for path in folder.rglob("*") if path.is_file()}


def end_after_an_epoch(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    def end(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Training, "validate", end)
        with pytest.raises(KeyboardInterrupt):
            train(**settings)


@pytest.mark.parametrize("task", RUNS)
def test_every_task_with_a_head_can_be_planned_and_nothing_is_left(task: str, tmp_path: Path, capsys) -> None:
    assert train(**RUNS[task], dry_run=True) == Path("runs") / f"{RUNS[task]['model']}-shapes"
    said = capsys.readouterr().out
    assert ("not estimated, as it depends on what images show" in said) == (task == "detect")
    assert ("estimated without computing" in said) == (task != "detect")
    for word in ("steps", "memory", "time", "disk", "on more processes"):
        assert re.search(rf"^  {word}\b", said, re.M), said
    assert not list(tmp_path.iterdir()), "not even the folder of runs"


def test_figures_follow_from_the_settings(tmp_path: Path, capsys) -> None:
    train(**PLAIN | dict(epochs=4), dry_run=True)
    assert not list(tmp_path.iterdir())
    said = capsys.readouterr().out
    assert "40 images to learn from, 20 to validate on" in said
    assert "5 in an epoch, 20 in all (4 epochs); 8 images each" in said
    rows = [line.split() for line in said.splitlines() if re.match(r" +\d+ +\d+ ", line)]
    assert [row[:2] for row in rows] == [["1", "8"], ["2", "4"], ["4", "2"], ["8", "1"]]


@pytest.mark.parametrize(("able", "amp"), [(True, "off"), (True, "bf16"), (False, "off")])
def test_mixed_precision_is_named_where_it_helps(able: bool, amp: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(training_plan, "faster_in_bf16", lambda device: able)
    train(**PLAIN | dict(amp=amp), dry_run=True)
    assert ("--amp bf16 may take half" in capsys.readouterr().out) == (able and amp == "off")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (dict(data="nowhere"), "nowhere"),
        (dict(weights="none.safetensors"), "none.safetensors"),
        (dict(recipe="none"), "there is no recipe 'none'"),
        (dict(batch_size=0), "batch_size 0 cannot be used; it must be at least 1"),
        (dict(teacher="resnet18x"), "resnet18x"),
    ],
)
def test_what_a_run_refuses_a_plan_refuses(changes: dict, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        train(**PLAIN | changes, dry_run=True)
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_there_is_not_touched(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    end_after_an_epoch(monkeypatch, **PLAIN | dict(epochs=2, out=out))
    before = files_of(out)
    train(**PLAIN | dict(epochs=2), out=out, dry_run=True)
    assert "10 in all (2 epochs, 5 steps are done)" in capsys.readouterr().out
    assert files_of(out) | {".lock": ""} == before | {".lock": ""}
    with pytest.raises(InputError, match="holds a run with other settings"):
        train(**PLAIN | dict(epochs=3), out=out, dry_run=True)


def test_a_batch_that_does_not_fit_is_refused_before_it_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_memory, "free_on", lambda device: 3_000_000)
    monkeypatch.setattr(Training, "step", lambda *_: pytest.fail("a step was taken"))
    with pytest.raises(
        InputError, match=r"a step on 40 images .* 3\.\d+ MB are free on cpu; --batch-size \d+ would do"
    ):
        train(**PLAIN | dict(batch_size=40), dry_run=True)


def test_auto_takes_what_fits_and_a_continued_run_keeps_it(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(step_memory, "free_on", lambda device: 6_000_000)
    settings = PLAIN | dict(batch_size="auto", epochs=2, out=tmp_path / "run")
    end_after_an_epoch(monkeypatch, **settings)
    said = capsys.readouterr().out
    batch = json.loads((tmp_path / "run" / "run.json").read_text())["arguments"]["batch_size"]
    assert f"batch size: {batch}, the largest that fits the 6." in said
    assert "learning rate: 0.001, whatever the batch" in said
    assert 1 < batch < 40
    monkeypatch.setattr(step_memory, "free_on", lambda device: 10**12)
    train(**settings)
    assert f"batch size: {batch}, with which the run in" in capsys.readouterr().out
    train(**settings | dict(out=tmp_path / "another", dry_run=True))
    assert "batch size: 40, the largest" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("free", "says"), [(1000, "not even one image at a time fits"), (None, "does not tell how much")]
)
def test_where_nothing_fits_or_nothing_is_known(free: int | None, says: str, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(step_memory, "free_on", lambda device: free)
    with pytest.raises(InputError, match=says):
        train(**PLAIN | dict(batch_size="auto"))
    assert not list(tmp_path.iterdir())


def test_batch_and_precision_may_both_be_auto(tmp_path: Path, capsys) -> None:
    train(**PLAIN | dict(batch_size="auto", amp="auto"), dry_run=True)
    said = capsys.readouterr().out
    assert said.index("precision: ") < said.index("images each")


def test_a_recipe_may_say_auto(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("batch_size: auto\n")
    settings = with_recipe("paca_b0", "shapes", recipe="mine.yaml")
    assert settings.batch_size == "auto"
    assert settings.settled(batch_size=16).origins["batch_size"] == "recipe mine.yaml"
    assert settings.settled(batch_size=16).batch == 16
    (tmp_path / "wrong.yaml").write_text("batch_size: large\n")
    with pytest.raises(InputError, match=r'batch_size: .*large.* given; accepted: a whole number, or "auto"'):
        load_recipe("wrong.yaml")
    assert TrainSettings("paca_b0", "shapes", batch_size="auto", lr_batch=64).batch_size == "auto"


@pytest.mark.system
@pytest.mark.parametrize(
    ("model", "size"), [("paca_b0", 96), pytest.param("emsnet_xxtiny", 96, marks=pytest.mark.slow)]
)
def test_the_estimate_is_within_15_percent_of_what_is_measured(model: str, size: int, tmp_path: Path) -> None:
    """The resident memory of a process of its own, as `vitreous bench` measures what it cannot count."""
    settings = dict(
        model=model, data="shapes", size=size, batch_size=16, train_count=32, val_count=4, workers=0, device="cpu"
    )
    ranks = Ranks(1, ["train", *arguments(settings), "--dry-run"], tmp_path / "logs")
    assert ranks.wait() == [0], ranks.said_by_all()
    said = ranks.said_by_all()
    estimated = amounts(next(line for line in said.splitlines() if line.startswith("  memory")))[0]
    measured = amounts(next(line for line in said.splitlines() if "measured in a step" in line))[-1]
    assert estimated == pytest.approx(measured, rel=0.15), said


@pytest.mark.system
def test_two_processes_plan_together(tmp_path: Path) -> None:
    settings = PLAIN | dict(batch_size="auto", out=tmp_path / "run")
    ranks = Ranks(2, ["train", *arguments(settings), "--dry-run"], tmp_path / "logs")
    assert ranks.wait() == [0, 0], ranks.said_by_all()
    said = ranks.said_by_all()
    assert "batch size: 32, the largest" in said, "16 in each of two processes, of 40 images"
    assert "in each of 2 processes" in said
    assert said.count("plan of") == 1
    assert not (tmp_path / "run").exists()
