"""docs/evaluate.md: its commands work, its links and pictures are there, its figures are those that are shown."""

import json
import shlex

from tests.support.pages import blocks, dead_links, read
from vitreous_command import main

PAGE = "docs/evaluate.md"
TINY = {
    "train": "--size 32 --epochs 1 --batch-size 8 --train-count 16 --val-count 8 --workers 0 --device cpu",
    "evaluate": "--count 10 --workers 0 --device cpu",
    "plot": "",
}


def test_commands_work(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks(PAGE, "bash") for line in block.splitlines()]
    trained = [line for line in lines if line.startswith("vitreous train")]
    for command in [*trained, *(line for line in lines if line not in trained)]:
        verb = command.split()[1]
        words = [*shlex.split(command)[1:], *shlex.split(TINY[verb])]
        assert main(words) == 0, f"{command}\n{capsys.readouterr().err}"
    assert [at["size"] for at in json.loads((tmp_path / "figures.json").read_text())["sizes"]] == [48, 64, 96, 128]
    assert (tmp_path / "comparison" / "curves.html").exists()
    assert list((tmp_path / "runs" / "large" / "tensorboard").iterdir())
    promised = {"evaluation.html", "report.md", "evaluation.json", "confusion.csv", "confusion.png", "reliability.png"}
    assert promised <= {path.name for path in (tmp_path / "runs" / "small" / "evaluation").iterdir()}
    for figure in ("`top1`", "`top5`", "`loss`", "`ece`", "recall", "precision"):
        assert figure.strip("`") in (tmp_path / "figures.md").read_text()
        assert f"| {figure}" in read(PAGE) or f", {figure} |" in read(PAGE)


def test_links_lead_somewhere():
    assert not dead_links(PAGE)
