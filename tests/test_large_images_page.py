"""docs/large-images.md: its command and its snippet work, and too little memory is told in one line."""

import shlex
from pathlib import Path

import pytest
from PIL import Image

from tests.support.pages import blocks, dead_links
from tests.support.tiny_model import save_tiny_model
from vitreous_command import main

PAGE = "docs/large-images.md"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    save_tiny_model(Path("runs/demo"))
    Image.new("RGB", (90, 60), "teal").save("panorama.jpg")


def test_the_command_and_the_snippet_work(place: None, capsys: pytest.CaptureFixture[str]) -> None:
    (block,), (snippet,) = blocks(PAGE, "bash"), blocks(PAGE, "python")
    words = shlex.split(block)[1:]
    words[words.index("--size") + 1] = "96x160"
    assert main([*words, "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("plan: 96x160 pixels, 1 at a time: ")
    assert "panorama.jpg  " in said
    exec(snippet.replace("(4000, 6000)", "(128, 192)"), {})
    assert capsys.readouterr().out.startswith("128x192 pixels, 1 at a time: ")
    assert not dead_links(PAGE)


def test_too_little_memory_is_one_line(place: None, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", "runs/demo", "panorama.jpg", "--size", "960x1600", "--max-memory", "40MB"]
    assert main([*asked, "--out", "found"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0
    assert "one image of 960x1600 pixels needs about" in said
    assert "would do" in said
    assert not Path("found").exists()
