"""Data without splits: which pictures are held out follows from their content, and from nothing else."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.tiny_data import picture
from vitreous.data.layouts import held_out
from vitreous.data.layouts.held_out import CONTENT_PIECE_BYTES, sides
from vitreous.data.source import describe, open_data, open_raw
from vitreous.errors import InputError


def flat(root: Path, classes=("ant", "bee", "cat"), count: int = 20) -> Path:
    for label, name in enumerate(classes):
        for number in range(count):
            picture(root / name / f"{number}.png", seed=1000 * label + number)
    return root


def names(root: Path, split: str, **options) -> set[str]:
    images = open_data(str(root), split, size=(8, 8), **options)
    return {images.name(index) for index in range(len(images))}


def test_parts_are_disjoint_and_complete(tmp_path):
    root = flat(tmp_path / "data")
    train, val = names(root, "train"), names(root, "val")
    assert not train & val
    assert len(train | val) == 60
    assert 4 <= len(val) <= 24
    assert {name.split("/")[0] for name in val} == {"ant", "bee", "cat"}
    assert val <= names(root, "val", val_fraction=0.5), "a larger share holds what the smaller one does"


def test_side_depends_on_content_alone(tmp_path):
    """Files written in another order, at another time and place, and under other names."""
    root, other = flat(tmp_path / "data"), tmp_path / "elsewhere"
    files = sorted(root.rglob("*.png"))
    random.Random(1).shuffle(files)
    for number, file in enumerate(files):
        target = other / file.parent.name / f"renamed{number}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    content = [{(folder / name).read_bytes() for name in names(folder, "val")} for folder in (root, other)]
    assert content[0] == content[1]


def test_copies_fall_on_the_same_side(tmp_path):
    root = flat(tmp_path / "data")
    for file in list(root.rglob("*.png")):
        shutil.copyfile(file, file.with_name(f"copy of {file.name}"))
    val = names(root, "val")
    assert val == {name.replace("/", "/copy of ") for name in val if "copy" not in name} | {
        name for name in val if "copy" not in name
    }


def test_added_pictures_change_nothing_for_the_others(tmp_path):
    root = flat(tmp_path / "data")
    before = names(root, "val")
    for number in range(20):
        picture(root / "ant" / f"more{number}.png", seed=7000 + number)
    assert {name for name in names(root, "val") if "more" not in name} == before


@pytest.mark.parametrize("fraction", [0.001, 0.2, 0.999])
def test_small_classes_have_pictures_on_both_sides(fraction):
    rng = np.random.default_rng(0)
    classes = [label for label in range(200) for _ in range(2)]
    held = sides(rng.random(400).tolist(), classes, fraction)
    for label in range(200):
        assert held[2 * label] + held[2 * label + 1] == 1
    assert sides([0.01], ["alone"], fraction) == [False], "a single picture is there to be learnt"


def test_share_is_about_the_fraction():
    held = sides(np.random.default_rng(0).random(20_000).tolist(), [0] * 20_000, 0.2)
    assert abs(sum(held) / 20_000 - 0.2) < 0.01


def test_large_files_differ_by_start_middle_and_end(tmp_path, monkeypatch):
    """Three pieces of each are read, and their length counts."""
    whole = bytearray(10 * CONTENT_PIECE_BYTES)
    changed = {"start": 0, "middle": 5 * CONTENT_PIECE_BYTES, "end": 10 * CONTENT_PIECE_BYTES - 1}
    contents = {"same": bytes(whole), "longer": bytes(whole) + b"\0"}
    for place, position in changed.items():
        contents[place] = bytes(whole[:position]) + b"\1" + bytes(whole[position + 1 :])
    digests = set()
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        digests.add(held_out._content_of(tmp_path / name))
    assert len(digests) == 5


def test_what_is_held_out_is_told_and_part_of_the_fingerprint(tmp_path):
    root = flat(tmp_path / "data")
    parts = open_raw(str(root))
    told = describe(str(root), **parts)
    assert "has no splits; 20% of it is held out as val, by content (--val-fraction)" in told
    assert {part.val_fraction for part in parts.values()} == {0.2}
    others = open_raw(str(root), val_fraction=0.3)
    assert len({part.fingerprint for part in (*parts.values(), *others.values())}) == 4
    assert open_raw(str(root))["train"].fingerprint == parts["train"].fingerprint
    assert parts["train"].fingerprint.startswith("0.8 of ")


def test_the_real_share_is_told_where_it_is_another(tmp_path):
    root = flat(tmp_path / "data", count=2)
    picture(root / "yak" / "1.png", seed=99)
    parts = open_raw(str(root))
    assert (len(parts["train"]), len(parts["val"])) == (4, 3)
    told = describe(str(root), **parts)
    assert "20% of it is held out as val, by content (--val-fraction); that is 3 of 7 here\n" in told
    assert "data: yak: no picture in val, for there is one alone, or copies of one, and train has it" in told
    for number in range(7):
        picture(tmp_path / "many" / f"class {number}" / "1.png", seed=number)
    picture(tmp_path / "many" / "class 0" / "2.png", seed=100)
    told = describe(str(tmp_path / "many"), **open_raw(str(tmp_path / "many")))
    assert "data: class 1, class 2, class 3, class 4, class 5, ...: no picture in val" in told
    even = describe(str(root), **open_raw(str(root), val_fraction=3 / 7))
    assert " here" not in even


def test_everything_is_held_out_without_opening_a_file(tmp_path, monkeypatch):
    root = flat(tmp_path / "data")
    monkeypatch.setattr(held_out, "_content_of", None)
    images = open_data(str(root), "val", size=(8, 8), val_fraction=1)
    assert len(images) == 60
    assert "100% of it is held out" in describe(str(root), val=images)
    with pytest.raises(InputError, match="nothing to train on"):
        open_data(str(root), "train", size=(8, 8), val_fraction=1)


def test_refusals(tmp_path):
    root = flat(tmp_path / "data", count=2)
    with pytest.raises(InputError, match=r"only train and val can be made from it; 'test' was asked for"):
        open_data(str(root), "test", size=(8, 8))
    for wrong in (0, -1, 1.5):
        with pytest.raises(InputError, match="above 0 and at most 1"):
            open_data(str(root), "val", size=(8, 8), val_fraction=wrong)
    copies = tmp_path / "copies"
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        picture(copies / name)
    with pytest.raises(InputError, match="too few different pictures"):
        open_data(str(copies), "val", size=(8, 8))


def test_missing_file_goes_by_its_name(tmp_path):
    root = flat(tmp_path / "data")
    images = open_data(str(root), "val", size=(8, 8), val_fraction=1)
    (root / images.name(3)).unlink()
    assert 0 <= held_out._place(images, 3) < 1
