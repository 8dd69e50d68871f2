"""Which settings apply is asked from the tasks, which are found by being there."""

import sys
from dataclasses import fields

import pytest

import vitreous.tasks
from vitreous.data.layouts.base import TARGET_KINDS
from vitreous.errors import InputError
from vitreous.tasks.base import load_tasks
from vitreous.training.settings import TrainSettings

TALLY = """
from vitreous.tasks.classify import ClassifyTask

class Tally(ClassifyTask):
    name, purpose, targets = "tally", "tally objects", "boxes"
    settings = frozenset({"short"})

TASK = Tally
"""


@pytest.fixture
def tally(tmp_path, monkeypatch):
    (tmp_path / "tally.py").write_text(TALLY)
    monkeypatch.setattr(vitreous.tasks, "__path__", [*vitreous.tasks.__path__, str(tmp_path)])
    yield
    sys.modules.pop("vitreous.tasks.tally", None)


def test_tasks_name_settings_targets_and_themselves():
    known = {field.name for field in fields(TrainSettings)}
    for name, task in load_tasks().items():
        assert task.__module__ == f"vitreous.tasks.{name}"
        assert task.settings <= known
        assert task.targets in TARGET_KINDS


def test_a_task_in_an_added_folder_has_its_own_settings(tally):
    assert TrainSettings("paca_b0", "shapes", task="tally", short=(32,)).task == "tally"
    with pytest.raises(InputError, match="it is for --task classify, and this is tally"):
        TrainSettings("paca_b0", "shapes", task="tally", mixup=0.5)
    with pytest.raises(InputError, match="it is for --task detect or segment or tally, and this is classify"):
        TrainSettings("paca_b0", "shapes", short=(32,))
    with pytest.raises(InputError, match=r"unknown task 'talyl'; accepted: classify, .*, tally"):
        TrainSettings("paca_b0", "shapes", task="talyl")
