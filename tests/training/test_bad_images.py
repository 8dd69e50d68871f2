import json

import pytest

from vitreous.data.loader import Unreadable
from vitreous.data.source import open_data
from vitreous.errors import InputError
from vitreous.training.bad_images import BadImages


@pytest.fixture
def images():
    return {split: open_data("shapes", split, size=(16, 16), count=20) for split in ("train", "val")}


def bad(*samples: int) -> list[Unreadable]:
    return [Unreadable(sample, f"reason {sample}") for sample in samples]


def listed(found: BadImages) -> list[tuple[str, int]]:
    lines = found.file.read_text().splitlines() if found.file.exists() else []
    return [(entry["split"], entry["index"]) for entry in map(json.loads, lines)]


def test_each_is_listed_once(tmp_path, images):
    found = BadImages(tmp_path, images, 0.5)
    found.note("train", bad(7, 2, 7))
    found.note("val", bad(2))
    assert found.settle() == 3
    found.note("train", bad(7, 3))
    assert found.settle() == 1
    assert found.settle() == 0
    assert listed(found) == [("train", 2), ("train", 7), ("val", 2), ("train", 3)]
    first = json.loads(found.file.read_text().splitlines()[0])
    assert (first["name"], first["reason"]) == ("train/2", "reason 2")


def test_nothing_bad_leaves_no_file(tmp_path, images):
    found = BadImages(tmp_path, images, 0.5)
    found.note("train", [])
    found.settle()
    assert not found.file.exists()


def test_processes_bring_together_what_they_met(tmp_path, images):
    first, second = (BadImages(tmp_path, images, 0.5, writes=writes) for writes in (True, False))
    first.note("train", bad(5, 1))
    second.note("train", bad(5, 0))
    own = [[("train", one) for one in bad(5, 1)], [("train", one) for one in bad(5, 0)]]
    assert first.settle(lambda _: own) == second.settle(lambda _: own) == 3
    assert len(first) == len(second) == 3
    assert listed(first) == [("train", 0), ("train", 1), ("train", 5)], "one process writes"


def test_the_limit_is_a_share_of_each_split(tmp_path, images):
    found = BadImages(tmp_path, images, 0.1)
    found.note("train", bad(0, 1))
    found.note("val", bad(0, 1))
    with pytest.raises(InputError, match=r"3 of the 20 train images .* 'train/0'; --max-corrupt allows 10\.0%"):
        found.note("train", bad(9))
    assert len(listed(found)) == 5, "what led to the end can be looked up"


def test_the_limit_holds_for_what_others_met(tmp_path, images):
    found = BadImages(tmp_path, images, 0.1)
    with pytest.raises(InputError, match="3 of the 20 val images"):
        found.settle(lambda own: [own, [("val", one) for one in bad(1, 2, 3)]])


def test_going_back_forgets_what_came_later(tmp_path, images):
    found = BadImages(tmp_path, images, 0.5)
    for sample in (4, 2, 8):
        found.note("train", bad(sample))
        found.settle()
    again = BadImages(tmp_path, images, 0.5)
    again.restore(2)
    assert listed(again) == [("train", 4), ("train", 2)]
    again.note("train", bad(2, 8))
    assert again.settle() == 1
    again.restore(0)
    assert listed(again) == []


@pytest.mark.parametrize(
    "line", ["{", "3", '{"index": 1}', '{"split": [], "index": 1}', '{"split": "train", "index": ""}']
)
def test_a_damaged_list_is_named_with_its_line(tmp_path, images, line):
    found = BadImages(tmp_path, images, 0.5)
    found.note("train", bad(1, 2))
    found.settle()
    first, second = found.file.read_text().splitlines()
    found.file.write_text("\n".join([first, line, second, ""]))
    with pytest.raises(InputError, match=r"bad_images\.jsonl is damaged at line 2"):
        BadImages(tmp_path, images, 0.5).restore(3)
