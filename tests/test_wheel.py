"""The wheel holds the package and nothing else: every module, recipe, page and table, and no test or benchmark."""

import subprocess
import sys
import zipfile

import pytest

from tests.support.pages import ROOT

pytestmark = pytest.mark.system


def test_wheel_contents(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "vitreous").rglob("*") if path.is_file()}
    expected = {name for name in package if "__pycache__" not in name} | {"vitreous_command.py"}
    assert names == expected
    assert {name for name in names if name.endswith(".yaml")}, "recipes are files of the package"
