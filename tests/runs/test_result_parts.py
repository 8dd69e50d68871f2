"""Parts of one result: done once, put together in order, never those of something else."""

import os
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch

from tests.support.tiny_model import save_tiny_model
from vitreous.data.many_pictures import gather_pictures
from vitreous.errors import InputError
from vitreous.runs.model_folder import load_model
from vitreous.runs.result_parts import (
    MOST_PARTS,
    Part,
    open_parts,
    parts_note,
    portion_size,
    remove_parts,
    was_interrupted,
)
from vitreous.runs.result_shards import model_fingerprint
from vitreous.runtime.distributed import SINGLE_PROCESS

CHOSEN = [0, 2, 3, 5, 6, 8, 9]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return load_model(save_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def images():
    return gather_pictures(["shapes:val:0-9"], size=(16, 16))


class Work:
    """Writes down which images it is given, and fails where it is told to."""

    def __init__(self, trained, images, out, fails_at=None, **settings):
        self.note = parts_note("sums", trained, images, CHOSEN, 2, {"limit": 7, **settings})
        self.out, self.fails_at, self.done = out, fails_at, []

    def opened(self):
        return open_parts(self.out, lambda: self.note, CHOSEN, self.read, SINGLE_PROCESS)

    @staticmethod
    def read(part, images):
        if part.numbers["images"].tolist() != list(images):
            raise ValueError("other images")
        return part.numbers["images"].tolist(), part.told["places"]

    def part(self, places, numbers):
        found = list(numbers)
        if self.fails_at in found:
            raise KeyboardInterrupt
        self.done += found
        return Part({"images": torch.tensor(found)}, {"places": list(places)})

    def whole(self):
        parts, found = self.opened(), []
        parts.fill(self.part, label="add")
        assert parts.put_together(found.append, lambda: None)
        return found


WHOLE = [([0, 2], [0, 1]), ([3, 5], [2, 3]), ([6, 8], [4, 5]), ([9], [6])]


def test_what_is_there_is_not_done_again(trained, images, tmp_path, capsys):
    begun = Work(trained, images, tmp_path, fails_at=6)
    with pytest.raises(KeyboardInterrupt):
        begun.whole()
    assert begun.done == [0, 2, 3, 5]
    assert was_interrupted(tmp_path, begun.note)
    again = Work(trained, images, tmp_path)
    assert again.whole() == WHOLE
    assert again.done == [6, 8, 9]
    assert "4 of 7 images were there before" in capsys.readouterr().out
    remove_parts(tmp_path)
    assert os.listdir(tmp_path) == []
    assert not was_interrupted(tmp_path, again.note)


def test_parts_of_a_command_that_began_earlier_in_the_same_folder_are_not_taken(trained, images, tmp_path, capsys):
    earlier, later = Work(trained, images, tmp_path), Work(trained, images, tmp_path, limit=8)
    begun = earlier.opened()
    parts, found = later.opened(), []  # before the first one has done anything
    begun.fill(earlier.part, label="add")
    parts.fill(later.part, label="add")
    assert parts.put_together(found.append, lambda: None)
    assert found == WHOLE
    assert later.done == CHOSEN
    assert "it is part of another result" in capsys.readouterr().out


@pytest.mark.parametrize("size", [2, 3])
def test_processes_divide_what_is_missing(trained, images, tmp_path, size):
    """Each of them, seen alone, takes every n-th of the portions that were missing when all began."""
    with pytest.raises(KeyboardInterrupt):
        Work(trained, images, tmp_path, fails_at=3).whole()
    done = []
    for rank in range(size):
        work = Work(trained, images, tmp_path)
        parts = work.opened()
        replace(parts, world=OneOfMany(rank, size, [1, 2, 3])).fill(work.part, label="add")
        assert work.done == [number for portion in [1, 2, 3][rank::size] for number in WHOLE[portion][0]]
        done += work.done
    assert sorted(done) == [3, 5, 6, 8, 9]
    last = Work(trained, images, tmp_path)
    assert last.whole() == WHOLE
    assert last.done == []


class OneOfMany(NamedTuple):
    """A process that the first one has told what is missing."""

    rank: int
    size: int
    told: list[int]
    main = False

    def on_main(self, _):
        return self.told

    def agree(self, action):
        return action()


def damage_bytes(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


DAMAGES = {
    "a flipped bit": damage_bytes,
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:40]),
    "empty": lambda path: path.write_bytes(b""),
    "a pickle": lambda path: torch.save({"images": [0, 2]}, path),
    "that of other images": lambda path: path.write_bytes(path.with_name("sums-00002.safetensors").read_bytes()),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_part_is_done_again(trained, images, tmp_path, damage, capsys):
    Work(trained, images, tmp_path).whole()
    damage(tmp_path / ".parts" / "sums-00000.safetensors")
    again = Work(trained, images, tmp_path)
    assert again.whole() == WHOLE
    assert again.done == [0, 2]
    said = capsys.readouterr().out
    assert "sums-00000.safetensors cannot be read: " in said
    assert "; its images are done again\n5 of 7 images were there before" in said


def test_a_damaged_note_makes_parts_worthless(trained, images, tmp_path, capsys):
    Work(trained, images, tmp_path).whole()
    (tmp_path / ".parts" / "shards.json").write_text('{"kind": ')
    again = Work(trained, images, tmp_path)
    assert not was_interrupted(tmp_path, again.note)
    assert again.whole() == WHOLE
    assert len(again.done) == 7
    assert "shards.json is damaged: all images are done again" in capsys.readouterr().out


def test_parts_of_something_else_are_refused(trained, images, tmp_path):
    Work(trained, images, tmp_path).whole()
    before = {path.name: path.read_bytes() for path in (tmp_path / ".parts").iterdir()}
    retrained = trained._replace(classes=tuple(reversed(trained.classes)))
    for other, words in (
        (Work(trained, images, tmp_path, limit=8), r"for something else, .*: the settings differ \(limit\); remove"),
        (Work(retrained, images, tmp_path), "by another model, .*: the model's weights or preprocessing differ; re"),
    ):
        for act in (other.whole, lambda other=other: was_interrupted(tmp_path, other.note)):
            with pytest.raises(InputError, match=words) as refused:
                act()
            assert "\n" not in str(refused.value)
            assert str(tmp_path / ".parts") in str(refused.value)
    assert {path.name: path.read_bytes() for path in (tmp_path / ".parts").iterdir()} == before


def test_where_nothing_was_finished_nothing_is_refused(trained, images, tmp_path):
    first = Work(trained, images, tmp_path)
    first.opened()
    other = Work(trained, images, tmp_path, limit=8)
    assert not was_interrupted(tmp_path, other.note)
    assert other.whole() == WHOLE


def test_a_failure_before_the_first_part_leaves_nothing(trained, images, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        Work(trained, images, tmp_path, fails_at=0).whole()
    assert os.listdir(tmp_path) == []


def test_parts_that_make_no_result_go(trained, images, tmp_path):
    def refuse():
        raise InputError("nothing was found")

    parts = Work(trained, images, tmp_path).opened()
    parts.fill(Work(trained, images, tmp_path).part, label="add")
    with pytest.raises(InputError, match="nothing was found"):
        parts.put_together(lambda _: None, refuse)
    assert os.listdir(tmp_path) == []


def test_a_link_in_their_place_is_refused(trained, images, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".parts").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a symbolic link"):
        Work(trained, images, tmp_path).whole()
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize(("pictures", "batch_size", "size"), [(1, 8, 8), (200, 8, 8), (50_000, 64, 832), (3, 1, 1)])
def test_portions_are_whole_batches_and_few(pictures, batch_size, size):
    assert portion_size(pictures, batch_size) == size
    assert -(-pictures // size) <= MOST_PARTS


def test_a_model_with_closed_clusters_is_another_one(trained):
    before = model_fingerprint(trained)
    attention = next(part for part in trained.model.modules() if hasattr(part, "closed"))
    attention.closed = (0,)
    try:
        assert model_fingerprint(trained) != before
    finally:
        del attention.closed
    assert model_fingerprint(trained) == before
