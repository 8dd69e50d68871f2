"""docs/detect.md and docs/from-mm.md: what they show works, in order, and the settings they name exist."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from tests.support.openmmlab import PACA, semantic_fpn
from tests.support.pages import blocks, dead_links, read
from vitreous.runs.model_folder import load_model
from vitreous.training.recipe import RECIPE_KEYS
from vitreous_command import main

PAGES = ("docs/detect.md", "docs/from-mm.md")
TINY = {
    "shapes": "--count 6 --val 3 --size 64",
    "check": "--workers 0",
    "train": "--epochs 1 --batch-size 3 --workers 0 --device cpu",
    "evaluate": "--workers 0 --device cpu",
    "predict": "--device cpu",
    "explain": "--top-k 2 --limit 2 --device cpu",
}
SMALLER = {
    "detect": "--short 64 --longest 64 --head-args channels=16 convs=1",
    "segment": "--short 64 --crop 64 64 --head-args pyramid=16 width=16",
    "keypoints": "--crop 64 64 --head-args width=16",
}


def smaller(command: str) -> str:
    """The same command on fewer and smaller pictures; what comes later on a command line wins."""
    if "--print" in command:
        return command
    words = [command, TINY[command.split()[1]]]
    task = re.search(r"--task (\w+)", command)
    if task is not None and " train " in command:
        words.append(SMALLER[task[1]])
    if " shapes --" in command and " train " in command:
        words.append("--size 64 --train-count 6 --val-count 3")
    if " shapes --" in command and " evaluate " in command:
        words.append("--count 3")
    return " ".join(words)


def test_commands_and_code_work_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for line in filter(None, "\n".join(blocks(PAGES[0], "bash")).splitlines()):
        capsys.readouterr()
        assert main(shlex.split(smaller(line))[1:]) == 0, f"{line}\n{capsys.readouterr().err}"
    shown = {path.name for path in Path("runs").iterdir()}
    assert shown >= {"cells", "cells.json", "cells.md", "found", "why", "detector", "labels", "drawn"}
    (code,) = blocks(PAGES[0], "python")
    exec(compile(code, PAGES[0], "exec"), {})


def test_recipes_for_other_configurations_can_be_shown(capsys) -> None:
    for line in filter(None, "\n".join(blocks(PAGES[1], "bash")).splitlines()):
        assert main(shlex.split(line)[1:]) == 0, f"{line}\n{capsys.readouterr().err}"


def test_a_checkpoint_becomes_a_model_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state, _ = semantic_fpn()
    torch.save({"state_dict": state}, "sem_fpn.pth")
    (code,) = blocks(PAGES[1], "python")
    small = {key: value for key, value in PACA.items() if key != "clusters"}
    code = code.replace("dict(clusters=release.clusters)", f"dict(clusters=release.clusters, **{small!r})")
    exec(compile(code, PAGES[1], "exec"), {})
    trained = load_model("converted")
    assert (trained.task, len(trained.classes)) == ("segment", 5)
    with torch.no_grad():
        assert trained.model(torch.rand(1, 3, 64, 64)).shape == (1, 5, 64, 64)


@pytest.mark.parametrize("page", PAGES)
def test_settings_and_links(page: str) -> None:
    named = {name.replace("-", "_") for name in re.findall(r"[` ]--([a-z][a-z-]+)", read(page))}
    others = {"out", "recipe", "print", "format", "count", "json", "markdown", "min_score", "boxes", "slide", "scales",
              "limit", "nproc_per_node", "resume_from", "eval"}  # fmt: skip
    assert named - others <= set(RECIPE_KEYS)
    assert not dead_links(page)
