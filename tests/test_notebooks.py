"""The notebooks of the docs in a real kernel, and what objects show there."""

import json
import sys
import types
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.tiny_model import save_tiny_model
from vitreous.runs.model_folder import load_model
from vitreous.runtime import console

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebooks_are_valid_and_carry_no_outputs(file):
    content = nbformat.reads(file.read_text(), as_version=4)
    nbformat.validate(content)
    assert not [cell for cell in content.cells if cell.get("outputs")]
    assert "Upload notebook" in content.cells[0].source, "how to open it in Colab"
    assert "%pip install" in content.cells[0].source


@pytest.mark.system
def test_a_classifier_is_seen_into_in_a_kernel(tmp_path):
    save_tiny_model(tmp_path / "runs" / "demo")
    content = nbformat.read(ROOT / "docs" / "examples" / "see_into_a_classifier.ipynb", as_version=4)
    NotebookClient(content, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output.get("data", {}) for cell in content.cells for output in cell.get("outputs", [])]
    html = [one["text/html"] for one in shown if "text/html" in one]
    assert any("<table>" in one and "paca_tiny" in one for one in html), "the model"
    assert any("<iframe" in one for one in html), "the explanation"


def test_a_model_shows_itself_as_a_table(tmp_path):
    trained = load_model(save_tiny_model(tmp_path / "m"))
    shown = trained._replace(name="<b>mine</b>")._repr_html_()
    assert "&lt;b&gt;mine&lt;/b&gt;" in shown
    assert "64 x 64 pixels" in shown
    assert "10 classes" in shown


def test_progress_is_a_bar_in_a_notebook_and_a_line_elsewhere(monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(console, "_bar", lambda items, *_: drawn.append("bar") or iter(items))
    assert list(console.track([1, 2], total=2, label="work")) == [1, 2]
    assert not drawn
    assert "work: 2/2" in capsys.readouterr().err
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert list(console.track([1, 2], total=2, label="work")) == [1, 2]
    assert drawn == ["bar"]


def test_cells_have_names_of_their_own():
    for file in NOTEBOOKS:
        names = [cell["id"] for cell in json.loads(file.read_text())["cells"]]
        assert len(set(names)) == len(names)
