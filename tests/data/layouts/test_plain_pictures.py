"""Pictures alone: any folder of them will do, and what is known about them elsewhere is not lost."""

import pytest

from tests.support.tiny_data import annotation, as_folders, as_png, coco, drawn_pictures, picture, write_shard
from vitreous.data.source import describe, open_data, recognise, usable_as
from vitreous.errors import InputError


def opened(root, split="train", **options):
    return open_data(str(root), split, size=(32, 32), targets="pictures", **options)


def test_a_folder_of_pictures_is_divided_by_content(tmp_path):
    for number in range(20):
        picture(tmp_path / ("a" if number % 3 else "") / f"{number:02d}.png", seed=number)
    splits = {split: opened(tmp_path, split) for split in ("train", "val")}
    names = [[images.name(index) for index in range(len(images))] for images in splits.values()]
    assert sorted(names[0] + names[1]) == sorted(
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")
    )
    assert splits["train"].classes == ()
    assert splits["train"].target(0) == {}
    assert splits["train"].picture(0).size == (40, 30)
    assert "(pictures without labels): " in describe(str(tmp_path), "pictures", **splits)
    assert "classes" not in describe(str(tmp_path), "pictures", **splits)
    whole = opened(tmp_path, "val", val_fraction=1.0)
    before = whole.fingerprint
    picture(tmp_path / "new.png", seed=77)
    assert opened(tmp_path, "val", val_fraction=1.0).fingerprint != before


def test_folders_of_splits_are_splits(tmp_path):
    for split, count in (("train", 3), ("val", 2)):
        for number in range(count):
            picture(tmp_path / split / f"{number}.png", seed=number)
    assert [len(opened(tmp_path, split)) for split in ("train", "val")] == [3, 2]
    assert opened(tmp_path).name(0) == "train/0.png"
    with pytest.raises(InputError, match="has no split 'test'"):
        opened(tmp_path, "test")


def test_what_is_known_about_pictures_is_kept(tmp_path):
    as_folders(tmp_path / "classes")
    labelled, plain = (
        open_data(str(tmp_path / "classes"), "train", size=(32, 32), targets=kind) for kind in ("labels", "pictures")
    )
    assert plain.fingerprint == labelled.fingerprint
    assert [plain.target(index) for index in range(len(plain))] == [
        labelled.target(index) for index in range(len(plain))
    ]
    assert open_data("shapes", "val", size=(32, 32), count=3, targets="pictures").target(0).keys() == {"labels"}
    coco(tmp_path / "coco", [annotation(1)])
    coco(tmp_path / "coco", [annotation(1)], split="val")
    assert "objects" in opened(tmp_path / "coco").target(0)


def test_shards_need_no_labels(tmp_path):
    for split in ("train", "val"):
        write_shard(
            tmp_path / f"{split}-000.tar", {f"{n}.png": as_png(p) for n, (p, _) in enumerate(drawn_pictures("val"))}
        )
    assert len(opened(tmp_path)) == 20
    assert opened(tmp_path).target(0) == {}
    with pytest.raises(InputError, match="have no label"):
        open_data(str(tmp_path), "train", size=(32, 32))


def test_other_uses_of_a_folder_of_pictures_are_told_as_before(tmp_path):
    picture(tmp_path / "a.png")
    with pytest.raises(InputError, match="to get labels: its layout is not recognised"):
        recognise(str(tmp_path))
    with pytest.raises(InputError, match="its layout is not recognised"):
        usable_as(str(tmp_path))
    with pytest.raises(InputError, match="there is no such folder or file"):
        recognise(str(tmp_path / "nowhere"), "pictures")
