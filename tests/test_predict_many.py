"""`vitreous predict --jsonl`: every picture once, whatever happens, on any number of processes."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.ranks import Ranks
from tests.support.tiny_data import picture
from tests.support.tiny_model import save_tiny_dense, save_tiny_model
from vitreous.data import image_set
from vitreous.errors import InputError
from vitreous.predict import predict
from vitreous.runs import answer_shards
from vitreous_command import main

COUNT = 23


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(COUNT):
        picture(folder / f"{number:03d}.jpg", seed=number)
    return folder


def rows(out: Path) -> list[dict]:
    lines = [line for path in sorted(out.glob("predictions-*.jsonl")) for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def run(model: str, photos: Path, out: Path, **options) -> list[dict]:
    assert predict(model, (str(photos),), jsonl=True, out=out, **({"shard_size": 5} | options)) == []
    return rows(out)


@pytest.fixture(scope="module")
def whole(model, photos, tmp_path_factory) -> list[dict]:
    return run(model, photos, tmp_path_factory.mktemp("whole") / "out")


def test_rows_are_those_of_predictions_json(model, photos, whole):
    plain = predict(model, (str(photos),))
    assert [row["image"] for row in whole] == [row["image"] for row in plain]
    for one, other in zip(whole, plain, strict=True):
        assert [entry["class"] for entry in one["predictions"]] == [entry["class"] for entry in other["predictions"]]
        for left, right in zip(one["predictions"], other["predictions"], strict=True):
            assert left["probability"] == pytest.approx(right["probability"], abs=1e-6)


def test_what_is_there_is_not_done_again(model, photos, whole, tmp_path, monkeypatch, capsys):
    run(model, photos, tmp_path / "out")
    assert "23 pictures done, 0 unreadable, 0 were there before\ncomplete: 5 shards" in capsys.readouterr().out
    (tmp_path / "out" / "predictions-00002.jsonl").unlink()
    read, load = [], image_set.load_image
    monkeypatch.setattr(image_set, "load_image", lambda path, **how: (read.append(path.name), load(path, **how))[1])
    assert run(model, photos, tmp_path / "out") == whole
    assert sorted(read) == [f"{number:03d}.jpg" for number in range(10, 15)]
    assert "5 pictures done, 0 unreadable, 18 were there before" in capsys.readouterr().out


def test_two_processes_do_everything_once(model, photos, whole, tmp_path, monkeypatch, capsys):
    written = []
    for rank in range(2):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", str(rank))
        before = set(tmp_path.glob("out/*.jsonl"))
        predict(model, (str(photos),), out=tmp_path / "out", shard_size=5)  # several processes always write shards
        written.append(sorted(path.name for path in {*tmp_path.glob("out/*.jsonl")} - before))
    assert written == [
        [f"predictions-0000{n}.jsonl" for n in (0, 2, 4)],
        [f"predictions-0000{n}.jsonl" for n in (1, 3)],
    ]
    assert rows(tmp_path / "out") == whole
    said = capsys.readouterr().out
    assert "process 0 of 2: 13 pictures done" in said
    assert "2 of 5 shards are those of other processes, and not there yet" in said
    assert said.rstrip().endswith("pictures in " + str(tmp_path / "out"))
    with pytest.raises(InputError, match="2 processes write shards of answers to a folder"):
        predict(model, (str(photos),))


def test_another_model_is_refused_in_one_line(model, photos, tmp_path, capsys):
    run(model, photos, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    other = save_tiny_model(tmp_path / "other", dims=(8, 16, 24, 40))
    capsys.readouterr()
    assert main(["predict", other, str(photos), "--jsonl", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    assert "were written by another model" in said
    assert main(["predict", model, str(photos), "--jsonl", "--top-k", "2", "--out", str(tmp_path / "out")]) == 2
    assert "the settings differ" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_unreadable_pictures_have_a_row_that_says_why(model, photos, tmp_path, caplog):
    for number in range(3):
        picture(tmp_path / "mixed" / f"{number}.png", seed=number)
    (tmp_path / "mixed" / "1.png").write_bytes(b"no picture")
    found = run(model, tmp_path / "mixed", tmp_path / "out")
    assert ["error" in row for row in found] == [False, True, False]
    assert "1.png' is damaged or not an image" in found[1]["error"]
    assert "skipped: image" in caplog.text


def test_a_failure_leaves_whole_shards(model, photos, whole, tmp_path, monkeypatch):
    dumps, calls = json.dumps, []

    def failing(*arguments, **options):
        calls.append(1)
        if len(calls) == 8:
            raise OSError(28, "No space left on device")
        return dumps(*arguments, **options)

    monkeypatch.setattr(answer_shards.json, "dumps", failing)
    with pytest.raises(InputError, match=r"predictions-00001\.jsonl: No space left on device"):
        predict(model, (str(photos),), jsonl=True, out=tmp_path / "out", shard_size=5)
    monkeypatch.setattr(answer_shards.json, "dumps", dumps)
    assert sorted(os.listdir(tmp_path / "out")) == ["predictions-00000.jsonl", "shards.json"]
    assert run(model, photos, tmp_path / "out") == whole


def test_detectors_too(photos, tmp_path):
    found = run(save_tiny_dense(tmp_path / "fcos", "detect", ("a", "b")), photos, tmp_path / "out", batch_size=2)
    assert len(found) == COUNT
    assert {"class", "score", "bbox"} <= found[0]["predictions"][0].keys()


def test_a_folder_is_needed(model, photos):
    with pytest.raises(InputError, match="--jsonl writes shards of answers to a folder"):
        predict(model, (str(photos),), jsonl=True)


def slow_pictures() -> None:
    load = image_set.load_image
    image_set.load_image = lambda *given, **how: (time.sleep(0.05), load(*given, **how))[1]


@pytest.mark.system
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_and_continued(model, photos, whole, tmp_path, processes, monkeypatch, capsys):
    out = tmp_path / "out"
    words = ["predict", model, str(photos), "--jsonl", "--shard-size", "5", "--batch-size", "2", "--out", str(out)]
    ranks = Ranks(processes, [*words, "--device", "cpu"], tmp_path / "logs", before=slow_pictures)
    deadline = time.monotonic() + 120
    while not list(out.glob("predictions-*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.002)
    for rank in range(processes):
        ranks.send(rank, signal.SIGKILL)
    assert set(ranks.wait()) <= {-signal.SIGKILL}, ranks.said_by_all()
    there = {path.name: (path.stat().st_ino, path.read_bytes()) for path in out.glob("predictions-*.jsonl")}
    assert 0 < len(there) < 5
    assert all(len(content.splitlines()) in (5, 3) for _, content in there.values()), "whole or absent"
    expected = {row["image"]: row for row in whole}
    read, load = [], image_set.load_image
    monkeypatch.setattr(image_set, "load_image", lambda path, **how: (read.append(path), load(path, **how))[1])
    found = run(model, photos, out, batch_size=2)
    assert [row["image"] for row in found] == [row["image"] for row in whole]
    for row in found:
        assert [e["class"] for e in row["predictions"]] == [e["class"] for e in expected[row["image"]]["predictions"]]
    for name, kept in there.items():
        assert ((out / name).stat().st_ino, (out / name).read_bytes()) == kept, "finished work is left alone"
    assert len(read) == COUNT - sum(len(content.splitlines()) for _, content in there.values())
    assert sorted(os.listdir(out)) == [*(f"predictions-0000{n}.jsonl" for n in range(5)), "shards.json"]
