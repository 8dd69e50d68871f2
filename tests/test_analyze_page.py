"""docs/analyze.md: its commands work, and it names every kind."""

import re
import shlex
from pathlib import Path

import pytest

from tests.support.families import save_small
from tests.support.pages import dead_links, read
from vitreous.data.source import open_data
from vitreous.investigations.base import load_investigations
from vitreous_command import main

PAGE = "docs/analyze.md"
COMMANDS = re.findall(r"^    (vitreous analyze .*)$", read(PAGE), re.M)
SMALL = dict(dims=(8, 16), depths=(1, 1), heads=(1, 2), clusters=4, mlp_ratios=(1, 1))
QUICKER = {"scaling": "--sizes 32 --rounds 1", "resolution": "--sizes 48 64", "interaction": "--limit 1"}


@pytest.mark.parametrize("command", [command for command in COMMANDS if " ablate " not in command])
def test_commands_work(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    classes = tuple(open_data("shapes", "val", size=(64, 64), count=1).classes)
    for name in re.findall(r"runs/(\w+)", command):
        save_small(Path("runs") / name, "paca_b0", **SMALL, classes=classes)
    words = shlex.split(command)[1:]
    quicker = QUICKER.get(words[1], "--limit 2")
    assert main([*words, *quicker.split()]) == 0, capsys.readouterr().err
    assert (Path("analysis") / words[1] / "analysis.md").is_file()


def test_runs_are_made_by_commands_that_are_told(capsys) -> None:
    trained = re.findall(r"^    vitreous (train .*)$", read(PAGE), re.M)
    for command in trained:
        assert main([*shlex.split(command), "--print"]) == 0, capsys.readouterr().err
    made = {"demo", *re.findall(r"--out runs/(\w+)", "\n".join(trained))}  # `vitreous demo` makes the first
    assert set(re.findall(r"runs/(\w+)", "\n".join(COMMANDS))) <= made


def test_every_kind_is_told() -> None:
    told = re.findall(r"^\| `(\w+)` \|", read(PAGE), re.M)
    assert sorted(told) == sorted(load_investigations())
    assert {shlex.split(command)[2] for command in COMMANDS} == set(told)
    assert not dead_links(PAGE)
