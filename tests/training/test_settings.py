"""Which settings apply is asked from the tasks, which are found by being there."""

import sys
from dataclasses import fields

import pytest

import vitreous.tasks
from vitreous.data.targets import TARGET_KINDS
from vitreous.errors import InputError
from vitreous.tasks.base import load_tasks
from vitreous.training.settings import TrainSettings

COUNT = """
from vitreous.tasks.classify import ClassifyTask

class Count(ClassifyTask):
    name, purpose, targets = "count", "count objects", "boxes"
    settings = frozenset({"short"})

TASK = Count
"""


@pytest.fixture
def count(tmp_path, monkeypatch):
    (tmp_path / "count.py").write_text(COUNT)
    monkeypatch.setattr(vitreous.tasks, "__path__", [*vitreous.tasks.__path__, str(tmp_path)])
    yield
    sys.modules.pop("vitreous.tasks.count", None)


def test_tasks_name_settings_targets_and_themselves():
    known = {field.name for field in fields(TrainSettings)}
    for name, task in load_tasks().items():
        assert task.__module__ == f"vitreous.tasks.{name}"
        assert task.settings <= known
        assert task.targets in TARGET_KINDS


def test_a_task_in_an_added_folder_has_its_own_settings(count):
    assert TrainSettings("paca_b0", "shapes", task="count", short=(32,)).task == "count"
    with pytest.raises(InputError, match="it is for --task classify, and this is count"):
        TrainSettings("paca_b0", "shapes", task="count", mixup=0.5)
    with pytest.raises(InputError, match="it is for --task detect or segment or count, and this is classify"):
        TrainSettings("paca_b0", "shapes", short=(32,))
    with pytest.raises(InputError, match=r"unknown task 'cuont'; accepted: classify, .*, count"):
        TrainSettings("paca_b0", "shapes", task="cuont")
