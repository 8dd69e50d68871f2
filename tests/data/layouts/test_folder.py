from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.tiny_data import mask
from vitreous.check import check
from vitreous.data.image import ImageError
from vitreous.data.layouts.folder import ClassFolder, in_order
from vitreous.data.source import describe, open_data, open_raw
from vitreous.errors import InputError


@pytest.fixture
def root(tmp_path) -> Path:
    for split in ("train", "val"):
        for label, name in enumerate(["cat", "ant"]):
            for number in range(3):
                path = tmp_path / split / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 6), (100 * label, 10 * number, 0)).save(path)
    return tmp_path


def test_classes_are_sorted_and_labels_follow(root):
    (root / "train" / "ant" / "deep").mkdir()
    Image.new("RGB", (4, 4)).save(root / "train" / "ant" / "deep" / "X.PNG")
    (root / "train" / "ant" / "notes.txt").write_text("not an image")
    (root / "train" / ".cache").mkdir()
    images = ClassFolder(root, "train")
    assert images.classes == ("ant", "cat")
    assert len(images) == 7
    assert images.files[0] == ("ant/0.png", 0)
    assert ("ant/deep/X.PNG", 0) in images.files
    image, target = images[6]
    assert (image.size, target) == ((8, 6), {"labels": 1})


def test_fingerprint_follows_the_files(root):
    before = ClassFolder(root, "train").fingerprint
    assert ClassFolder(root, "train").fingerprint == before
    (root / "train" / "cat" / "0.png").rename(root / "train" / "cat" / "9.png")
    assert ClassFolder(root, "train").fingerprint != before


def test_test_folder_serves_as_val(root):
    (root / "val").rename(root / "test")
    assert len(ClassFolder(root, "val")) == 6


@pytest.mark.parametrize("name", ["valid", "validation"])
def test_other_names_of_the_held_out_split(root, name):
    (root / "val").rename(root / name)
    images = open_data(str(root), "val", size=(8, 8))
    assert (len(images), images.name(0)) == (6, f"{name}/ant/0.png")
    with pytest.raises(InputError, match="no split 'test'"):
        open_data(str(root), "test", size=(8, 8))


def test_what_is_wrong_can_be_looked_at(root):
    """`check` opens what training would refuse."""
    (root / "val" / "ant").rename(root / "val" / "bee")
    (root / "val" / "cow").mkdir()
    images = open_raw(str(root))
    assert [(split, found.classes) for split, found in images.items()] == [
        ("train", ("ant", "cat")),
        ("val", ("bee", "cat", "cow")),
    ]


def test_empty_class_folder(root):
    (root / "val" / "ant" / "0.png").unlink()
    for file in (root / "val" / "ant").iterdir():
        file.unlink()
    with pytest.raises(InputError, match=r"val/ant' holds no image"):
        ClassFolder(root, "val")


def test_splits_with_different_classes(root):
    (root / "val" / "ant").rename(root / "val" / "bee")
    with pytest.raises(InputError, match=r"only in train: ant; only in val: bee"):
        ClassFolder(root, "val")


def test_missing_split(root):
    (root / "val").rename(root / "other")
    with pytest.raises(
        InputError, match="no split 'val'; looked for val or valid or validation or test, found other, train"
    ):
        ClassFolder(root, "val")


def test_split_without_class_folders(root):
    for name in ("ant", "cat"):
        (root / "val" / name).rename(root / f"old_{name}")
    with pytest.raises(InputError, match="no class folders"):
        ClassFolder(root, "val")


def test_unreadable_image_names_the_file(root):
    (root / "train" / "ant" / "0.png").write_bytes(b"<html>")
    with pytest.raises(ImageError, match=r"ant.0\.png"):
        ClassFolder(root, "train")[0]


def test_source_recognises_layouts(root):
    images = open_data(str(root), "val", size=(64, 64))
    assert isinstance(images, ClassFolder)
    assert "class folders" in describe(str(root), val=images)
    shapes = open_data("shapes:hard", "train", size=(32, 48), count=5)
    image, target = shapes[4]
    assert (len(shapes), image.size) == (5, (48, 32))
    assert 0 <= target["labels"] < len(shapes.classes)
    assert "shapes:hard train count=5" in shapes.fingerprint


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("no/such/folder", "there is no such folder"),
        ("shapes:hrad", "hard"),
        (".", "its layout is not recognised(.|\n)*shapes(.|\n)*<class>"),
    ],
)
def test_source_explains_what_it_accepts(data, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        open_data(data, "train", size=(32, 32))


def test_source_refuses_no_images():
    with pytest.raises(InputError, match="at least 1"):
        open_data("shapes", "train", size=(32, 32), count=0)


def test_numbers_are_sorted_as_numbers(root):
    assert in_order(["10", "9", "0", "100"]) == ["0", "9", "10", "100"]
    assert in_order(["10", "9", "cat"]) == ["10", "9", "cat"]
    assert in_order(["1", "01", "²"]) == ["01", "1", "²"]
    for split in ("train", "val"):
        for number, name in ((10, "ant"), (9, "cat")):
            (root / split / name).rename(root / split / str(number))
    images = ClassFolder(root, "val")
    assert images.classes == ("9", "10")
    assert (images.name(0), images.target(0)) == ("val/9/0.png", {"labels": 0})


OBJECT_AND_BORDER = np.zeros((6, 8), np.uint8)
OBJECT_AND_BORDER[1:4, 2:6], OBJECT_AND_BORDER[2, 3:5] = 255, 1


@pytest.mark.parametrize("flat", [False, True])
def test_masks_beside_the_classes_show_the_object(root, flat):
    root, inside = (root / "train", "") if flat else (root, "train")
    mask(root / "masks" / inside / "ant" / "0.png", OBJECT_AND_BORDER)
    mask(root / "masks" / inside / "ant" / "1.png", 0 * OBJECT_AND_BORDER)
    images = open_raw(str(root), val_fraction=1)["val" if flat else "train"]
    assert images.classes == ("ant", "cat")
    shown = images.object_mask(0)
    assert shown is not None
    assert np.array_equal(np.array(shown), OBJECT_AND_BORDER == 1)  # the border belongs to nothing
    assert [images.object_mask(index) for index in (1, 2)] == [None, None]  # an empty mask, and none


def test_masks_that_fit_no_picture_are_named(root, capsys):
    mask(root / "masks" / "val" / "ant" / "7.png", OBJECT_AND_BORDER)
    with pytest.raises(InputError, match=r"ant/7\.png' belongs to no picture .* name masks like their pictures"):
        open_data(str(root), "val", size=(8, 8))
    mask(root / "masks" / "train" / "ant" / "0.png", OBJECT_AND_BORDER[:3])
    mask(root / "masks" / "train" / "ant" / "1.png", 255 * (OBJECT_AND_BORDER > 0))
    images = ClassFolder(root, "train")
    with pytest.raises(ImageError, match=r"ant/0\.png' has 8 x 3 pixels, its picture 8 x 6"):
        images.object_mask(0)
    with pytest.raises(ImageError, match=r"ant/1\.png' holds 255 alone.* draw objects as 1"):
        images.object_mask(1)
    report = check(str(root), write=False, workers=0)
    assert {found.kind: len(found.images) for found in report.problems} == {"faults": 1, "annotations": 2, "leaks": 6}
    assert "ant/7.png' belongs to no picture" in capsys.readouterr().out
