"""Commands in messages can be copied into a shell as they are, and install where this vitreous runs."""

import importlib.util
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.pages import ROOT
from vitreous import errors
from vitreous.errors import command, to_install, to_install_extra


@pytest.mark.parametrize("name", ["photos", "my photos", "it's", 'a "b"', "$HOME", "a;b", "ünï", "new\nline"])
def test_names_of_all_kinds_stay_one_word_of_a_command(name):
    assert shlex.split(command("evaluate", Path("runs") / name, name)) == ["vitreous", "evaluate", f"runs/{name}", name]


@pytest.fixture
def activated(monkeypatch):
    """As in a shell in which the environment of this Python is active."""
    monkeypatch.setattr(shutil, "which", lambda name: str(Path(sys.executable).parent / name))


def as_installed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(errors, "__file__", str(folder / "vitreous" / "errors.py"))


def test_an_extra_of_a_source_folder_is_installed_from_it(monkeypatch, tmp_path, activated):
    monkeypatch.chdir(ROOT)
    assert to_install_extra("det") == 'pip install -e ".[det]"'
    monkeypatch.chdir(tmp_path)
    assert to_install_extra("det") == f'pip install -e "{ROOT}[det]"'


@pytest.mark.parametrize("name", ["with space", "with'quote", 'with"quote', "with$dollar"])
def test_source_folders_of_all_names_stay_one_word(monkeypatch, tmp_path, activated, name):
    source = tmp_path / name
    source.mkdir()
    (source / "pyproject.toml").write_text('[project]\nname = "vitreous"\n')
    as_installed(monkeypatch, source)
    assert shlex.split(to_install_extra("web")) == ["pip", "install", "-e", f"{source}[web]"]


def test_an_extra_of_an_installed_package_is_asked_for_by_name(monkeypatch, tmp_path, activated):
    as_installed(monkeypatch, tmp_path)  # a folder of installed packages
    assert to_install_extra("det") == 'pip install "vitreous[det]"'
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "somebody-elses"\n')  # a copy in another project
    assert to_install_extra("det") == 'pip install "vitreous[det]"'
    assert to_install("supervision") == "pip install supervision"


def test_where_the_environment_is_not_active_its_own_pip_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    assert to_install("supervision") == ".venv/bin/python -m pip install supervision"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert to_install("supervision") == f"{tmp_path}/.venv/bin/python -m pip install supervision"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # uv makes environments without pip
    assert to_install("supervision") == f"uv pip install --python {tmp_path}/.venv/bin/python supervision"


def test_no_message_has_an_install_command_of_its_own():
    written = re.compile(r"pip install|next: vitreous")
    files = [ROOT / "vitreous_command.py", *(ROOT / "vitreous").rglob("*.py")]
    found = [path for path in files if path.name != "errors.py" and written.search(path.read_text())]
    assert not found, "use to_install, to_install_extra and command of vitreous/errors.py"
