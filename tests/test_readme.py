"""What the README shows works: its commands on tiny settings, its snippets, its make targets and its table."""

import re
import shlex
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image

import vitreous_command
from tests.support.pages import ROOT, blocks, dead_links, read
from tests.support.released_weights import publish, released_file
from tests.support.site import serving

README = read("README.md")
TARGETS = dict(re.findall(r"^([\w-]+):.*\n((?:\t.*\n)*)", read("Makefile"), re.M))
TINY = {  # what makes a README command quick enough for a test
    "train": "--size 32 --epochs 1 --batch-size 8 --workers 0",
    "evaluate": "--workers 0",
    "predict": "",
    "explain": "--size 32 --top-k 2 --limit 1 --method centre_blob --ranking logit_gate",
    "shortcuts": "--limit 20",
    "shapes": "--count 20 --val 20 --size 32",
}


def commands() -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks("README.md", "bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith("vitreous ")]


def run(command: str) -> None:
    verb = command.split()[1]
    assert vitreous_command.main([*shlex.split(command)[1:], *shlex.split(TINY[verb])]) == 0, command


def test_commands_work_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but `serve`, which goes on until it is stopped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    assert "vitreous shapes --out photos" in README
    run("vitreous shapes --out photos")
    Image.open(next(Path("photos/val").rglob("*.png"))).convert("RGB").save("photo.jpg")
    verbs = [command.split()[1] for command in commands()]
    assert verbs == ["explain", "serve", "train", "evaluate", "explain", "shortcuts"]
    with serving() as site:
        publish(site, released_file(), monkeypatch)
        for command in commands():
            if command.split()[1] != "serve":
                run(command)
    assert (tmp_path / "explanation/report.html").stat().st_size > 10_000
    assert (tmp_path / "runs/photos/explanation/report.html").stat().st_size > 10_000


def test_snippets_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of one snippet are used in the text after it, so each is run by itself and then looked at."""
    monkeypatch.chdir(tmp_path)
    (first,), (second,) = blocks("README.md", "python"), blocks("docs/models.md", "python")
    names: dict = {}
    exec(first, names)
    shape = names["maps"]["stages.2.clusters"].shape
    assert f'`maps["stages.2.clusters"]` is `{tuple(shape)}`' in README
    file = re.search(r'load_weights\("(.*?)"\)', second)[1]
    torch.save(timm.create_model("paca_tiny").state_dict(), tmp_path / file)
    exec(second, names)
    assert names["model"].stages[0].blocks[0].clustering.logits.out_features == 200


def test_the_snippet_of_the_first_page_works() -> None:
    (snippet,) = blocks("docs/index.md", "python")
    names: dict = {}
    exec(snippet, names)
    assert len(names["maps"]) == 3  # a map for each stage with clusters


def test_make_targets_exist_and_run_what_the_readme_says() -> None:
    for target in re.findall(r"\bmake ([a-z-]+)", README + read("CONTRIBUTING.md")):
        assert target in TARGETS, f"the README or CONTRIBUTING speaks of make {target}"
    assert "vitreous demo" in TARGETS["demo"]
    assert "pytest" in TARGETS["test"]


def test_continuous_integration_runs_everything_but_the_slow_tests() -> None:
    (wanted,) = re.findall(r"^make (.+)$", (ROOT / ".ci/run").read_text(), re.M)
    assert wanted.split() == ["lint", "types", "test-all", "docs", "wheel"]
    assert set(wanted.split()) <= TARGETS.keys()
    assert TARGETS["test-all"].strip().endswith('-m "not slow"')
    workflow = (ROOT / ".github/workflows/tests.yml").read_text()
    for command in ("ruff format --check . && ruff check .", "mypy", "make docs wheel"):
        assert f"- run: {command}\n" in workflow
    assert '-m "not slow"' in workflow


def test_tables_are_what_info_prints(capsys: pytest.CaptureFixture[str]) -> None:
    from vitreous.info import info

    info(markdown=True)
    table = capsys.readouterr().out.strip()
    assert table in read("docs/models.md"), "run: vitreous info --markdown, and put it into docs/models.md"
    shown = [line for line in README.splitlines() if line.startswith("| `")]
    assert len(shown) == 10
    assert not set(shown) - set(table.splitlines()), "rows of the README are rows of docs/models.md"
    assert f"All {len(table.splitlines()) - 2} models" in README


@pytest.mark.parametrize("page", ["README.md", "docs/models.md", "docs/benchmarks.md", "docs/index.md"])
def test_links_lead_somewhere(page: str) -> None:
    assert not dead_links(page)
