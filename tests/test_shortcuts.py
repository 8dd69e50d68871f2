"""`vitreous shortcuts` as it is called: what it writes, says and refuses."""

import json

import pytest

import vitreous
from tests.support.tiny_model import save_tiny_model
from vitreous.errors import InputError
from vitreous_command import main


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


def test_the_verb_writes_pages_and_numbers(model, tmp_path, capsys):
    out = tmp_path / "found"
    found = vitreous.shortcuts(model, "shapes:corner_mark=0.9", limit=20, out=out)
    assert found.page == out / "index.html"
    assert found.masks
    content = json.loads((out / "shortcuts.json").read_text())
    assert [one["name"] for one in content["suspects"]] == [one.name for one in found.suspects]
    assert {"colour", "background", "cluster"} <= {one.kind for one in found.suspects}
    assert found.pictures == found.proposing == 10
    assert f"shortcuts: {out / 'index.html'}" in capsys.readouterr().out


def test_folders_of_others_are_left_alone(model, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        vitreous.shortcuts(model, "shapes", limit=20, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--limit", "0"], "--limit 0 cannot be used"), (["--limit", "6"], "6 images are too few")],
)
def test_what_cannot_be_used_is_one_line(model, tmp_path, capsys, arguments, said):
    assert main(["shortcuts", model, "shapes", "--out", str(tmp_path / "out"), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
