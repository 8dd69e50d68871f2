"""COCO's annotations under any name, with pictures in any folder."""

from pathlib import Path

import pytest

from tests.support.tiny_data import CATEGORIES, coco_file, picture
from vitreous.data.image import ImageError
from vitreous.data.layouts.coco_anywhere import CocoFiles, _finder, find_coco_files, with_annotations
from vitreous.data.source import open_data, open_raw, quarantine_file, recognise
from vitreous.errors import InputError
from vitreous.training.settings import TrainSettings


@pytest.fixture
def root(tmp_path) -> Path:
    """photos/{a,b}/*.png, labels/first.json and labels/second.json."""
    for number in range(4):
        picture(tmp_path / "photos" / "ab"[number // 2] / f"{number}.png", seed=number)
    coco_file(tmp_path / "labels" / "first.json", ["0.png", "1.png", "2.png"])
    coco_file(tmp_path / "labels" / "second.json", ["3.png"])
    return tmp_path


def opened(data, split="train", **options):
    return open_data(str(data), split, size=(8, 8), targets="boxes", **options)


def test_files_are_splits_by_order_or_by_name(root):
    first, second = root / "labels" / "first.json", root / "labels" / "second.json"
    data = with_annotations(str(root / "photos"), [first, second])
    assert (len(opened(data)), len(opened(data, "val"))) == (3, 1)
    assert recognise(data, "boxes").name == "COCO files"
    named = {"validation_v2": "val", "labels-train": "train", "instances_test2017": "test"}
    files = tuple(coco_file(root / "l" / f"{name}.json", ["0.png"]) for name in named)
    assert CocoFiles((), files).splits == dict(zip(named.values(), files, strict=True))
    inside = tuple(coco_file(root / split / "_annotations.coco.json", ["0.png"]) for split in ("valid", "train"))
    assert CocoFiles((), inside).splits == {"val": inside[0], "train": inside[1]}
    with pytest.raises(InputError, match="cannot tell which of"):
        CocoFiles((), (files[1], first)).splits
    with pytest.raises(InputError, match="cannot tell which of"):
        CocoFiles((), (first,) * 4).splits


def test_pictures_are_found_below_the_folder(root):
    data = with_annotations(str(root / "photos"), [root / "labels" / "first.json", root / "labels" / "second.json"])
    images = opened(data)
    assert [images.encoded(index) for index in range(3)] == [
        root / "photos" / p for p in ("a/0.png", "a/1.png", "b/2.png")
    ]
    assert images.name(0) == "train/0.png"
    assert images.picture(2).size == (40, 30)
    coco_file(root / "labels" / "first.json", ["a/0.png", "b/2.png"])
    assert opened(data).encoded(1) == root / "photos" / "b" / "2.png"


def test_same_names_in_several_folders(root):
    """The folder called like the split, then the one with most of them; what is left is refused."""
    for split in ("train2017", "val2017"):
        for number in range(2):
            picture(root / "coco" / split / f"{number}.png", seed=number)
    files = [coco_file(root / "labels" / f"{split}.json", ["0.png", "1.png"]) for split in ("train", "val")]
    data = with_annotations(str(root / "coco"), files)
    assert opened(data).encoded(0).parent.name == "train2017"
    assert opened(data, "val").encoded(1).parent.name == "val2017"
    for split in ("train2017", "val2017"):
        (root / "coco" / split).rename(root / "coco" / f"part{len(split)}")
    picture(root / "coco" / "part7" / "2.png")
    coco_file(files[0], ["0.png", "1.png", "2.png"])
    assert {opened(data).encoded(index).parent.name for index in range(3)} == {"part7"}
    coco_file(files[0], ["0.png", "1.png"])
    with pytest.raises(InputError, match=r"'0\.png' of .*train\.json could be .* and .*; give the folder"):
        opened(data)


def test_one_file_has_no_splits(root):
    names = [f"{number}.png" for number in range(4)]
    data = str(coco_file(root / "photos" / "export.json", names))
    parts = open_raw(data, "boxes")
    assert sum(map(len, parts.values())) == 4
    assert all(part.val_fraction == 0.2 for part in parts.values())
    assert "/" not in parts["train"].name(0)
    held = opened(coco_file(root / "photos" / "test.json", names), "val")
    assert (len(held), held.val_fraction) == (4, None), "a file to test with is all of it"
    with pytest.raises(InputError, match="has no split 'train'"):
        opened(root / "photos" / "test.json")


def test_pictures_beside_a_file_or_beside_its_folder(root):
    assert opened(coco_file(root / "photos" / "annotations" / "val.json", ["3.png"]), "val").encoded(0).is_file()
    with pytest.raises(InputError, match=r"no picture of .*val\.json is there, such as 'x\.png'; looked below"):
        opened(coco_file(root / "photos" / "annotations" / "val.json", ["x.png"]), "val")


def test_missing_pictures_stay_below_the_folder(root):
    """Whatever a name says, nothing outside is opened."""
    photos, outside = root / "photos", root / "secret.png"
    picture(outside)
    names = ["0.png", "7.png", "../secret.png", str(outside)]
    find = _finder([photos], names, "train", root / "labels" / "first.json")
    assert [find(name) for name in names] == [
        photos / name for name in ("a/0.png", "7.png", "secret.png", "secret.png")
    ]
    data = with_annotations(str(photos), [coco_file(root / "labels" / "first.json", ["0.png", "7.png"])])
    with pytest.raises(ImageError, match="does not exist"):
        opened(data, "val", val_fraction=1).picture(1)


def test_categories_must_be_the_same(root):
    files = [
        root / "labels" / "first.json",
        coco_file(root / "labels" / "second.json", ["3.png"], categories=CATEGORIES[:1]),
    ]
    data = with_annotations(str(root / "photos"), files)
    with pytest.raises(InputError, match=r"the categories of .* differ"):
        opened(data, "val")


def test_one_word(root, monkeypatch):
    monkeypatch.chdir(root)
    data = with_annotations("photos", ["labels/first.json", Path("labels/second.json")])
    assert data == "photos+labels/first.json+labels/second.json"
    assert with_annotations("photos", "labels/first.json") == "photos+labels/first.json"
    assert with_annotations("anything", ()) == "anything"
    assert quarantine_file(data) == Path("photos/quarantine.txt")
    settings = TrainSettings("paca_b0", "photos", task="detect", annotations=("labels/first.json",))
    assert settings.arguments()["data"] == settings.data == "photos+labels/first.json"
    assert settings.folder == Path("runs/paca_b0-photos")
    picture(root / "a+b" / "0.png")
    odd = coco_file(root / "c+d.json", ["0.png"])
    assert find_coco_files(f"a+b+{odd.name}") == CocoFiles((Path("a+b"),), (Path("c+d.json"),))
    assert find_coco_files("a+b") is None
    assert find_coco_files("photos+none.json") is None


def test_refusals(root):
    with pytest.raises(InputError, match=r"is not there or no \.json file"):
        with_annotations(str(root), ["none.json"])
    with pytest.raises(InputError, match="is no folder"):
        with_annotations("shapes", [root / "labels" / "first.json"])
    with pytest.raises(InputError, match=r"add --annotations .*first\.json .*second\.json"):
        recognise(str(root / "labels"), "boxes")
    (root / "labels" / "first.json").write_text("{}")
    with pytest.raises(InputError, match="COCO's format is needed"):
        opened(with_annotations(str(root / "photos"), [root / "labels" / "first.json"]))
