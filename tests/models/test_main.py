"""`python -m vitreous.models`: scripts that know only timm find our models."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import ROOT
from vitreous.models.__main__ import main

# What timm's train.py and validate.py do with --model, and a module beside the script.
SCRIPT = """
import argparse
import timm
from beside import CLASSES

parser = argparse.ArgumentParser()
parser.add_argument("--model")
parser.add_argument("data")
args = parser.parse_args()
if __name__ == "__main__":
    assert "paca_b0" in timm.list_models("paca*")
    model = timm.create_model(args.model, pretrained=False, num_classes=CLASSES)
    print(type(model).__name__, model.num_classes, args.data)
"""


@pytest.mark.system
def test_a_script_of_timms_finds_our_models(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/train.py").write_text(SCRIPT)
    (tmp_path / "scripts/beside.py").write_text("CLASSES = 7")
    words = ("scripts/train.py", "photos", "--model", "paca_b0")
    done = subprocess.run(
        [sys.executable, "-m", "vitreous.models", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "PaCa 7 photos\n"), done.stderr


def test_what_is_no_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (((), "no script given"), (("trian.py",), "'trian.py' is not a file")):
        monkeypatch.setattr(sys, "argv", ["vitreous/models/__main__.py", *words])
        with pytest.raises(SystemExit, match="2"):
            main()
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err == f"vitreous: {said}; use: python -m vitreous.models SCRIPT.py [its arguments]\n"
