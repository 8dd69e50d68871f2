"""Shards that are whole or absent, and what they are about."""

import json
import os
from contextlib import suppress

import pytest
import torch

from tests.support.tiny_model import save_tiny_model
from vitreous.data.many_pictures import gather_pictures
from vitreous.errors import InputError
from vitreous.runs.model_folder import load_model
from vitreous.runs.result_shards import Share, model_fingerprint, open_shards, own_share, usual_shard_size

ABOUT = {"model": "tiny", "fingerprint": "f", "settings": {"top_k": None}}


@pytest.fixture(scope="module")
def images():
    return gather_pictures(["shapes:val:0-9"], size=(16, 16))


def opened(folder, images, *, size=3, share=None, **changes):
    return open_shards(folder, "predictions", ".jsonl", images, share or Share(), size, ABOUT | changes)


def test_processes_share_every_picture_out_exactly_once(tmp_path, images):
    seen = []
    for number in range(3):
        shards = opened(tmp_path / "out", images, share=Share(number, 3))
        seen += [picture for shard in shards.own() for picture in shards.numbers(shard)]
    assert sorted(seen) == list(range(10))


def test_a_shard_is_whole_or_absent(tmp_path, images):
    shards = opened(tmp_path / "out", images)
    with suppress(KeyboardInterrupt), shards.writing(1) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert shards.missing(shards.own()) == [0, 1, 2, 3]
    assert os.listdir(shards.folder) == ["shards.json"]
    (shards.folder / f".{shards.path(1).name}.dead.tmp").write_bytes(b"half, of a process that was killed")
    with shards.writing(1) as file:
        file.write(b"whole")
        assert shards.missing([1]) == [1]
    assert shards.path(1).read_bytes() == b"whole"
    assert sorted(os.listdir(shards.folder)) == ["predictions-00001.jsonl", "shards.json"]
    assert shards.missing(shards.own()) == [0, 2, 3]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fingerprint": "g"}, "by another model, 'tiny': the model's weights or preprocessing differ"),
        ({"settings": {"top_k": 3}}, "for something else, 'tiny': the settings differ"),
        ({"size": 4}, "--shard-size differ"),
    ],
)
def test_what_differs_is_refused(tmp_path, images, changes, words):
    opened(tmp_path / "out", images)
    before = (tmp_path / "out" / "shards.json").read_bytes()
    with pytest.raises(InputError, match=words):
        opened(tmp_path / "out", images, **changes)
    assert (tmp_path / "out" / "shards.json").read_bytes() == before


def test_other_pictures_are_refused(tmp_path, images):
    opened(tmp_path / "out", images)
    with pytest.raises(InputError, match="the pictures differ"):
        opened(tmp_path / "out", gather_pictures(["shapes:val:0-8"], size=(16, 16)))


def test_the_size_is_that_of_the_first_process_unless_asked_for(tmp_path, images):
    assert opened(tmp_path / "out", images, size=4).size == 4
    assert opened(tmp_path / "out", images, size=None, share=Share(1, 2)).size == 4
    with pytest.raises(InputError, match="at most 65,536"):
        opened(tmp_path / "other", images, size=70_000)
    assert not (tmp_path / "other").exists()


def test_foreign_content_is_left_alone(tmp_path, images):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="not empty"):
        opened(tmp_path, images)
    with pytest.raises(InputError, match="is a file"):
        opened(tmp_path / "thesis.txt", images)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_damaged_note_is_named(tmp_path, images):
    opened(tmp_path / "out", images)
    (tmp_path / "out" / "shards.json").write_text('{"kind": ')
    with pytest.raises(InputError, match=r"shards\.json is damaged"):
        opened(tmp_path / "out", images)


@pytest.mark.parametrize(("pictures", "processes", "size"), [(10**6, 1, 2048), (500, 2, 32), (20_000, 4, 640)])
def test_every_process_has_several_shards(pictures, processes, size):
    assert usual_shard_size(pictures, processes) == size


def test_the_share_comes_from_the_environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert own_share() == Share(0, 1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(InputError, match="RANK from 0 to 3"):
        own_share()
    monkeypatch.setenv("RANK", "3")
    assert own_share() == Share(3, 4)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert own_share() == Share(3, 4, 1)
    monkeypatch.setenv("RANK", "three")
    with pytest.raises(InputError, match="RANK=three"):
        own_share()


def test_a_fingerprint_is_that_of_weights_and_preprocessing(tmp_path):
    folder = save_tiny_model(tmp_path / "tiny")
    first, again, larger = load_model(folder), load_model(folder), load_model(folder, size=96)
    assert model_fingerprint(first) == model_fingerprint(again)
    assert model_fingerprint(larger) != model_fingerprint(first)
    with torch.no_grad():
        next(again.model.parameters()).flatten()[0] += 1e-6
    assert model_fingerprint(again) != model_fingerprint(first)
    assert model_fingerprint(first._replace(classes=tuple(reversed(first.classes)))) != model_fingerprint(first)


def test_the_note_can_be_read_by_people(tmp_path, images):
    opened(tmp_path / "out", images)
    note = json.loads((tmp_path / "out" / "shards.json").read_text())
    assert (note["model"], note["data"]["pictures"], note["shard_size"]) == ("tiny", 10, 3)
