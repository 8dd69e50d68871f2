"""docs/train.md: its commands work in order, its recipes are all there are, its figures are those measured."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.support.pages import blocks, dead_links, read
from vitreous.training import model_choice
from vitreous.training.recipe import RECIPE_KEYS, load_recipe, recipe_names
from vitreous_command import main

PAGE = "docs/train.md"
TINY = {
    "shapes": "--count 20 --val 10 --size 32",
    "check": "--workers 0",
    "train": "--size 32 --epochs 1 --batch-size 8 --workers 0 --device cpu",
    "evaluate": "--workers 0 --device cpu",
    "predict": "--device cpu",
    "explain": "--top-k 2 --limit 1 --device cpu --method grad_cam",
}
ONLINE = ("fb_dist_in1k photos", "resnet18 photos")  # these fetch weights: only their settings are looked at


def test_commands_work_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model_choice, "why_unreachable", lambda url: "no network in this test")
    for line in filter(None, "\n".join(blocks(PAGE, "bash")).splitlines()):
        command, _, file = line.partition(" > ")
        verb = command.split()[1]
        tiny = TINY[verb] if "--print" not in command else ""
        words = shlex.split(f"{command} {tiny} {'--print' if any(name in line for name in ONLINE) else ''}")
        if "vit_tiny" in command:
            words = [word for word in words if word != "--print"] + shlex.split("--epochs 1 --batch-size 8 --workers 0")
        capsys.readouterr()
        assert main(words[1:]) == 0, f"{line}\n{capsys.readouterr().err}"
        if file:
            Path(file).write_text(capsys.readouterr().out)
    assert {path.name for path in Path("runs").iterdir()} >= {"photos", "tuned", "resnet", "taught", "soft"}
    assert Path("runs/photos/explanation/report.html").exists()


def test_every_recipe_is_in_the_table() -> None:
    assert sorted(re.findall(r"^\| `(\w+)` \| .* \| .* \|$", read(PAGE), re.M)) == recipe_names()


def test_the_example_is_a_recipe(tmp_path: Path) -> None:
    (example,) = blocks(PAGE, "yaml")
    (tmp_path / "own.yaml").write_text(example)
    recipe = load_recipe(str(tmp_path / "own.yaml"))
    assert recipe.family == "paca"
    assert recipe.values["lr"] == 5e-4
    assert set(recipe.values) < set(yaml.safe_load(example))


def test_the_settings_it_names_exist() -> None:
    named = {name.replace("-", "_") for name in re.findall(r"`--([a-z-]+)", read(PAGE))}
    assert named - {"any_model", "print", "dry_run", "out", "recipe"} <= set(RECIPE_KEYS)


def test_links_lead_somewhere() -> None:
    assert not dead_links(PAGE)
