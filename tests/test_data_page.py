"""docs/data.md: its snippets and commands work in order, and its table of small pictures is true."""

import re
import shlex
from pathlib import Path

import pytest

import vitreous_command
from tests.support.pages import dead_links, read
from vitreous.train import train

PAGE = "docs/data.md"
QUICK = {  # what makes a command quick enough for a test
    "shapes": "--val 10 --size 32",
    "check": "--workers 0",
    "train": "--size 32 --epochs 1 --batch-size 8 --workers 0 --device cpu",
    "evaluate": "--workers 0 --device cpu",
}


def test_commands_and_snippets_work_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = []
    for language, text in re.findall(r"```(bash|python)\n(.*?)```", read(PAGE), re.S):
        if language == "python":
            exec(text, {})
            continue
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            words = ["20" if word == "200" else word for word in words]
            assert words[0] == "vitreous"
            assert vitreous_command.main([*words[1:], *shlex.split(QUICK[words[1]])]) == 0, line
            ran.append(words[1])
    assert {"check", "train", "evaluate", "shapes"} == set(ran)
    assert not Path("photos/quarantine.txt").exists(), "nothing is wrong with drawn pictures"
    assert Path("lists/photos.txt").exists()


ROWS = re.findall(r"^\| `(\w+)` \| (?:`--model-args (\S+)`|none.*?) \|$", read(PAGE), re.M)


@pytest.mark.parametrize(("model", "argument"), ROWS)
def test_every_family_takes_small_pictures(tmp_path, model, argument):
    out = train(
        model, "shapes", out=tmp_path / "run", size=32, epochs=1, batch_size=2, train_count=2, val_count=2,
        model_args=(argument,) if argument else (), workers=0, device="cpu",
    )  # fmt: skip
    assert (out / "final").exists()


def test_links_and_families() -> None:
    assert len(ROWS) == 6
    assert {name.split("_")[0] for name, _ in ROWS} == {"paca", "xcit", "mat", "partialformer", "emsnet"}
    assert not [link for link in dead_links(PAGE) if not link.startswith("#")]
    headings = {re.sub(r"\W+", "-", title.lower()) for title in re.findall(r"^#+ (.*)$", read(PAGE), re.M)}
    assert {link[1:] for link in re.findall(r"\]\((#[\w-]+)\)", read(PAGE))} <= headings
