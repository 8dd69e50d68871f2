"""docs/without-labels.md: its commands work in order, and what it names is there."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from tests.support.pages import blocks, dead_links, read
from vitreous.tasks.base import load_task
from vitreous.tasks.dino import DinoTask
from vitreous.training.recipe import load_recipe, recipe_names
from vitreous.training.settings import TrainSettings
from vitreous_command import main

PAGE = "docs/without-labels.md"
TINY = {
    "shapes": "--count 20 --val 10 --size 32",
    "train": "--size 32 --epochs 1 --batch-size 8 --workers 0 --device cpu --model-args dim=16 depth=4 heads=2 "
    "ends=(0,1,2,3)",
    "evaluate": "--workers 0 --device cpu --linear-epochs 2",
    "embed": "--device cpu",
}


def test_commands_work_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for line in filter(None, "\n".join(blocks(PAGE, "bash")).splitlines()):
        words = shlex.split(f"{line} {TINY[line.split()[1]]}")
        if "quick_dino" in line:
            words += ["--local-size", "16"]
        assert main(words[1:]) == 0, f"{line}\n{capsys.readouterr().err}"
    assert Path("features.json").is_file()


def test_all_settings_of_the_task_and_its_recipes_are_told() -> None:
    text = read(PAGE)
    for name in DinoTask.settings - {"crop_ratio"}:
        assert f"`--{name.replace('_', '-')}`" in text, name
    told = set(re.findall(r"`--([a-z-]+)", text)) - {
        "task",
        "knn",
        "linear",
        "shard",
        "pretrained",
        "weights",
    }
    assert {name.replace("-", "_") for name in told} <= {field.name for field in fields(TrainSettings)}
    mine = [name for name in recipe_names() if load_recipe(name).values.get("task") == "dino"]
    assert re.findall(r"^\| `(\w+_dino)` \|", text, re.M) == mine
    assert all(f"`{figure}`" in text for figure in load_task("dino").watched)


def test_links_lead_somewhere() -> None:
    assert not dead_links(PAGE)
