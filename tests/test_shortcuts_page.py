"""docs/shortcuts.md and its notebook: links lead somewhere, and every command and cell runs."""

import json
import shlex
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import vitreous_command
from tests.support.pages import ROOT, blocks, dead_links, notebook_code

TINY = {  # what makes a command of the page quick enough for a test
    "train": "--size 32 --epochs 1 --batch-size 8 --workers 0",
    "shortcuts": "--limit 20",
}
DRAWN = {"train": "--train-count 16 --val-count 12", "mend": "--count 20 --workers 0"}  # of shapes
PAGE, NOTEBOOK = "docs/shortcuts.md", "docs/examples/find_and_mend.ipynb"
SIZES = "PICTURES, EPOCHS, MEASURED, SEARCHED = 3000, 2, 500, 240"


def run(command: str) -> None:
    verb, *arguments = shlex.split(command)
    assert vitreous_command.main([verb, *arguments, *shlex.split(TINY.get(verb, ""))]) == 0, command


def test_commands_work_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("shapes --out photos --count 16 --val 12 --size 32")
    run("train paca_b0 photos --recipe explainable --out runs/photos")
    Path("regions.json").write_text(json.dumps({"regions": [{"box": [0, 0, 0.25, 0.25]}]}))
    done = []
    for line in "".join(blocks(PAGE, "bash")).splitlines():
        verb = line.split()[1]
        drawn = DRAWN.get(verb, "") if "shapes:" in line else ""
        run(f"{line.removeprefix('vitreous ')} {drawn}")
        done.append(verb)
    assert done == ["train", "shortcuts", "train", "train", "train", "mend", "mend", "mend", "mend"]


def run_cells(sizes: str) -> dict[str, Any]:
    """The code of the notebook, cell by cell, with other sizes; what it leaves behind."""
    source = notebook_code(NOTEBOOK)
    assert SIZES in source[0]
    known: dict[str, Any] = {}
    for code in source:
        exec(code.replace(SIZES, sizes), known)
    return known


@pytest.mark.system
def test_the_notebook_runs_in_a_kernel(tmp_path):
    content = nbformat.read(ROOT / NOTEBOOK, as_version=4)
    cells = [cell for cell in content.cells if SIZES in cell.source]
    assert len(cells) == 1
    cells[0].source = cells[0].source.replace(SIZES, "PICTURES, EPOCHS, MEASURED, SEARCHED = 64, 1, 60, 40")
    told = nbformat.v4.new_code_cell('print(0 <= after["worst_group"] <= after["group_mean"])')
    content.cells.append(told)
    NotebookClient(content, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(output.get("text", "") for cell in content.cells for output in cell.get("outputs", []))
    assert "Trained to look at the object (--attend-to masks)." in printed
    assert told.outputs[0].text == "True\n"
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
