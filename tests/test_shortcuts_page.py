"""docs/shortcuts.md and its notebook: links lead somewhere, and every cell runs."""

from typing import Any

import pytest

from tests.support.pages import dead_links, notebook_code

PAGE, NOTEBOOK = "docs/shortcuts.md", "docs/examples/find_and_mend.ipynb"
SIZES = "PICTURES, EPOCHS, MEASURED, SEARCHED = 3000, 2, 500, 240"


def run_cells(sizes: str) -> dict[str, Any]:
    """The code of the notebook, cell by cell, with other sizes; what it leaves behind."""
    source = notebook_code(NOTEBOOK)
    assert SIZES in source[0]
    known: dict[str, Any] = {}
    for code in source:
        exec(code.replace(SIZES, sizes), known)
    return known


def test_the_notebook_runs_cell_by_cell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    known = run_cells("PICTURES, EPOCHS, MEASURED, SEARCHED = 64, 1, 60, 40")
    assert 0 <= known["after"]["worst_group"] <= known["after"]["group_mean"]
    assert "Trained to look at the object (--attend-to masks)." in capsys.readouterr().out
    assert (tmp_path / "runs" / "hidden" / "mended.md").is_file()
    assert (tmp_path / "runs" / "mended" / "evaluation" / "report.md").is_file()


@pytest.mark.slow
def test_the_notebook_finds_and_mends_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = run_cells(SIZES)
    assert known["found"].suspects[0].name == "upper left corner"
    assert known["found"].suspects[0].verdict == "serious"
    assert known["honest"]["top1"] < known["alike"]["top1"] - 0.2
    assert known["after"]["worst_group"] > known["honest"]["worst_group"] + 0.3


def test_links_lead_somewhere():
    assert not dead_links(PAGE)
