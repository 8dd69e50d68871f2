"""Every way to write down a class for each pixel gives the same class numbers."""

import numpy as np
import pytest
from PIL import Image

from tests.support.tiny_data import mask, picture
from vitreous.data.image import ImageError
from vitreous.data.layouts.mask_classes import CITYSCAPES, IGNORE
from vitreous.data.source import describe, open_data
from vitreous.errors import InputError
from vitreous.shapes import shapes

VALUES = np.zeros((30, 40), np.uint8)
VALUES[10:20], VALUES[20:] = 1, 2


def pair(root, values=VALUES, name="a", folder="masks", **options):
    picture(root / "images" / "train" / f"{name}.jpg")
    mask(root / folder / "train" / f"{name}.png", values, **options)


def opened(root, **options):
    return open_data(str(root), "train", size=(8, 8), targets="semantic", **options)


def semantic(root, **options):
    return opened(root, **options).target(0)["semantic"]


@pytest.mark.parametrize("folder", ["masks", "annotations", "labels"])
@pytest.mark.parametrize("palette", [True, False])
def test_numbers_with_and_without_palette(tmp_path, folder, palette):
    pair(tmp_path, folder=folder, palette=palette)
    (tmp_path / "classes.txt").write_text("sky\nsea\nland\n")
    images = opened(tmp_path)
    assert "pictures with masks): 1 train images, 3 classes" in describe(str(tmp_path), "semantic", train=images)
    assert images.classes == ("sky", "sea", "land")
    assert images.name(0) == "train/a.jpg"
    assert np.array_equal(images.target(0)["semantic"], VALUES)


def test_classes_may_be_found(tmp_path):
    pair(tmp_path, np.where(VALUES == 2, 255, VALUES * 7))
    images = opened(tmp_path)
    assert images.classes == ("0", "7")
    assert np.unique(images.target(0)["semantic"]).tolist() == [0, 1, IGNORE]


def test_black_and_white_masks_have_two_classes(tmp_path):
    pair(tmp_path, np.where(VALUES, 255, 0))
    assert opened(tmp_path).classes == ("0", "255")
    assert np.array_equal(semantic(tmp_path), VALUES > 0)
    assert opened(tmp_path, ignore=(255,)).classes == ("0",)


def test_ignored_values(tmp_path):
    pair(tmp_path)
    (tmp_path / "classes.txt").write_text("sky\nsea\nland\n")
    assert np.array_equal(semantic(tmp_path, ignore=(1, 9)), np.where(VALUES == 1, IGNORE, VALUES))


@pytest.mark.parametrize("names", ["sea\nland\n", "background\nsea\nland\n", None])
def test_zero_may_be_no_class(tmp_path, names):
    pair(tmp_path)
    if names:
        (tmp_path / "classes.txt").write_text(names)
    images = opened(tmp_path, reduce_zero_label=True)
    assert images.classes == (("sea", "land") if names else ("1", "2"))
    assert np.array_equal(images.target(0)["semantic"], np.where(VALUES == 0, IGNORE, VALUES - 1))


def test_ade20k(tmp_path):
    picture(tmp_path / "images" / "training" / "a.jpg")
    mask(tmp_path / "annotations" / "training" / "a.png", VALUES)
    rows = ["Idx\tRatio\tTrain\tVal\tName", "1\t0.1\t5\t5\twall", "2\t0.1\t5\t5\tbuilding, edifice"]
    (tmp_path / "objectInfo150.txt").write_text("\n".join(rows))
    images = opened(tmp_path)
    assert images.classes == ("wall", "building")
    expected = np.where(VALUES == 0, IGNORE, VALUES - 1)
    assert np.array_equal(images.target(0)["semantic"], expected)
    assert np.array_equal(semantic(tmp_path, reduce_zero_label=True), expected), "saying it again changes nothing"


@pytest.mark.parametrize("train_ids", [True, False])
def test_cityscapes(tmp_path, train_ids):
    stem = "bonn_000_001"
    picture(tmp_path / "leftImg8bit" / "train" / "bonn" / f"{stem}_leftImg8bit.png")
    folder = tmp_path / "gtFine" / "train" / "bonn"
    mask(folder / f"{stem}_gtFine_labelIds.png", np.array([7, 4, 33])[VALUES])
    mask(folder / f"{stem}_gtFine_instanceIds.png", VALUES)
    if train_ids:
        mask(folder / f"{stem}_gtFine_labelTrainIds.png", np.array([0, IGNORE, 18])[VALUES])
    images = opened(tmp_path)
    assert images.classes == tuple(CITYSCAPES.values())
    assert len(images.classes) == 19
    assert np.array_equal(images.target(0)["semantic"], np.array([0, IGNORE, 18])[VALUES])


COLOURS = np.array([[128, 0, 0], [0, 128, 0], [0, 0, 0]], np.uint8)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("class_dict.csv", "name,r,g,b\nSky,128,0,0\nRoad,0,128,0\nVoid,0,0,0\n"),
        ("label_colors.txt", "128 0 0\tSky\n0 128 0\tRoad\n0 0 0\tVoid\n"),
        ("classes.txt", "Sky 128 0 0\nRoad 0 128 0\nVoid 0 0 0\n"),
        ("classes.txt", "128 0 0 Sky\n0 128 0 Road\n0 0 0 Void\n"),
        ("classes.txt", "0: Void 0 0 0\n2: Road 0 128 0\n1: Sky 128 0 0\n"),
    ],
)
def test_camvid_in_colours(tmp_path, file, text):
    picture(tmp_path / "train" / "0001.png")
    mask(tmp_path / "train_labels" / "0001_L.png", COLOURS[VALUES])
    (tmp_path / file).write_text(text)
    images = opened(tmp_path)
    assert images.classes == ("Sky", "Road")
    assert np.array_equal(images.target(0)["semantic"], np.array([0, 1, IGNORE])[VALUES])


def test_files_of_shapes_are_the_embedded_ones(tmp_path):
    root = shapes(out=tmp_path / "toy", format="masks", count=3, val=0, size=64)
    files, drawn = opened(root), open_data("shapes", "train", size=(64, 64), count=3, targets="semantic")
    assert files.classes == drawn.classes
    for index in range(3):
        assert np.array_equal(files.target(index)["semantic"], drawn.target(index)["semantic"])


@pytest.mark.parametrize(
    "text",
    [
        "# names\nsky\nroad\ntree\ncar\n",
        "sky\nroad\n# plants\ntree\ncar",
        "0 sky\n1 road\n2 tree\n3 car\n",
        "3: car\n2: tree\n1: road\n\n0: sky\n",
        "0,sky\n1,road\n2,tree\n3,car",
        "0\tsky\n1\troad\n2\ttree\n3\tcar",
    ],
)
def test_names_belong_to_their_values(tmp_path, text):
    pair(tmp_path, np.array([0, 1, 3])[VALUES])
    (tmp_path / "classes.txt").write_text(text)
    images = opened(tmp_path)
    assert images.classes == ("sky", "road", "tree", "car")
    assert np.unique(images.target(0)["semantic"]).tolist() == [0, 1, 3]


def test_names_behind_values_with_gaps(tmp_path):
    pair(tmp_path, np.array([0, 1, 3])[VALUES])
    (tmp_path / "classes.txt").write_text("0 sky\n1 road\n3 traffic light\n")
    images = opened(tmp_path)
    assert images.classes == ("sky", "road", "traffic light")
    assert np.array_equal(images.target(0)["semantic"], VALUES)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sky\n\ntree\ncar", "line 2 is empty"),
        ("sky,road,tree,car", "its only line is 'sky,road,tree,car'"),
        ("0 sky\n1 road\n1 car", "two classes have the same value"),
        ("0 sky\n70000 road", "the value of a class is a whole number from 0 to 65535"),
    ],
)
def test_names_whose_values_are_in_doubt_are_refused(tmp_path, text, reason):
    pair(tmp_path, np.array([0, 1, 3])[VALUES])
    (tmp_path / "classes.txt").write_text(text)
    with pytest.raises(InputError, match=rf"classes\.txt cannot be read: {reason}"):
        opened(tmp_path)


def test_wrong_masks_are_named(tmp_path):
    pair(tmp_path)
    (tmp_path / "classes.txt").write_text("sky\nsea\n")
    file = tmp_path / "masks" / "train" / "a.png"
    with pytest.raises(ImageError, match=r"mask '.*a\.png' holds 2, which none of the 2 classes has"):
        semantic(tmp_path)
    mask(file, np.zeros((30, 41)))
    with pytest.raises(ImageError, match=r"a\.png' has 41 x 30 pixels, its picture 40 x 30"):
        semantic(tmp_path)
    mask(file, np.zeros((30, 40, 3)))
    with pytest.raises(ImageError, match=r"a\.png' is stored in colours \(RGB\)"):
        semantic(tmp_path)
    Image.new("L", (40, 30)).save(file, format="JPEG")
    with pytest.raises(ImageError, match=r"a\.png' is a JPEG"):
        semantic(tmp_path)
    file.write_bytes(b"none")
    with pytest.raises(ImageError, match=r"a\.png' cannot be read"):
        semantic(tmp_path)


def test_masks_that_are_missing(tmp_path):
    pair(tmp_path)
    pair(tmp_path, name="b")
    (tmp_path / "masks" / "train" / "b.png").unlink()
    with pytest.raises(ImageError, match=r"b\.png' does not exist"):
        opened(tmp_path).target(1)
    (tmp_path / "masks" / "train" / "a.png").rename(tmp_path / "masks" / "train" / "c.png")
    with pytest.raises(InputError, match=r"no picture in .* has a mask of the same name"):
        opened(tmp_path)


def test_photographs_are_no_masks(tmp_path):
    pair(tmp_path, np.arange(1200).reshape(30, 40) % 251)
    with pytest.raises(InputError, match="more than 100 values and nothing says which classes"):
        opened(tmp_path)


def test_fingerprint_follows_the_files(tmp_path):
    pair(tmp_path)
    before = opened(tmp_path).fingerprint
    assert opened(tmp_path).fingerprint == before
    pair(tmp_path, np.random.default_rng(0).integers(0, 3, VALUES.shape))
    assert opened(tmp_path).fingerprint != before
