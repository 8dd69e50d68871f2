"""Folders of results: at every moment the earlier result or the new one, and no file without its marker."""

import json
import os

import pytest

from vitreous.errors import InputError
from vitreous.files.storage import write_json
from vitreous.runs.results import UNFINISHED, require_writable, result_folder


def write(out, *names):
    with result_folder(out, "marker.json") as staging:
        for name in names:
            (staging / name).write_text("new")
        write_json(staging / "marker.json", {"files": list(names)})


@pytest.mark.parametrize("call", range(1, 5))
def test_interrupted_move_leaves_no_file_without_marker(tmp_path, monkeypatch, call):
    out, calls, replace = tmp_path / "out", [], os.replace
    write(out, "a", "b")

    def interrupted(source, target):
        calls.append(target)
        if len(calls) == call:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("vitreous.runs.results.os.replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(out, "b", "c")
    listed = json.loads((out / "marker.json").read_text())["files"]
    assert {path.name for path in out.iterdir()} - {"marker.json"} <= set(listed)
    write(out, "d")
    assert {path.name for path in out.iterdir()} == {"marker.json", "d"}


def test_what_a_killed_verb_left_is_cleared_away(tmp_path):
    (tmp_path / UNFINISHED).mkdir()
    (tmp_path / UNFINISHED / "a").write_text("half")
    write(tmp_path, "b")
    assert {path.name for path in tmp_path.iterdir()} == {"marker.json", "b"}


@pytest.mark.parametrize("listed", [[".."], ["../mine"], [3], "x", None])
def test_only_own_files_are_removed(tmp_path, listed):
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "mine").write_text("keep")
    write_json(out / "marker.json", {"files": listed})
    write(out, "a")
    assert (tmp_path / "mine").read_text() == "keep"


def test_places_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="cannot write --json /proc/nope/x"):
        require_writable("--json", type(tmp_path)("/proc/nope/x"))
    with pytest.raises(InputError, match="is a folder"):
        require_writable("--json", tmp_path)
