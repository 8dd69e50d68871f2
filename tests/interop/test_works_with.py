"""The page on other libraries: each of its snippets runs by itself, and its shapes are as its comments say."""

import re
from pathlib import Path

import pytest
import torch

from tests.support.pages import blocks, dead_links, read

PAGE = "docs/works-with.md"
SECTIONS = [text.partition("\n")[0] for text in read(PAGE).split("\n## ") if "```python" in text]
STATED = re.compile(r"^\s*(\w+) = .*# (\([\d, ]+\))", re.M)  # name = …  # (2, 3, 128, 192)


SNIPPETS = [pytest.param(code, id=title) for title, code in zip(SECTIONS, blocks(PAGE, "python"), strict=True)]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet(snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(snippet, names)
    for name, shape in STATED.findall(snippet):
        assert str(tuple(names[name].shape)) == shape
    if "losses" in names:
        assert all(torch.isfinite(loss) for loss in names["losses"].values())


def test_page_is_linked_and_its_links_lead_somewhere() -> None:
    assert f"]({PAGE})" in read("README.md")
    assert not dead_links(PAGE)


def test_packages_named_are_those_the_tests_install() -> None:
    command, scripts = blocks(PAGE, "bash")
    for package in command.split()[2:]:
        assert f'"{package}>=' in read("pyproject.toml"), package
    assert all("-m vitreous.models train.py --model paca_b0 " in line for line in scripts.strip().splitlines())
