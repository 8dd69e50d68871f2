"""Ten thousand requests, four hundred at a time: nothing but answers and "try again", and then as before."""

import subprocess
import sys

import pytest

from tests.support.explorer import save_lively_model
from tests.support.pages import ROOT

pytestmark = pytest.mark.system


@pytest.mark.slow
def test_survives_a_crowd(tmp_path):
    model = save_lively_model(tmp_path / "model")
    load = ["--requests", "10000", "--concurrent", "400", "--rounds", "1", "--size", "64"]
    command = [sys.executable, "benchmarks/serve_load.py", "--run", model, *load]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=590)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10,000 requests" in done.stdout
