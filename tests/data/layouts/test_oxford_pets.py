"""Pictures named by class and number, with trimaps and lists of names."""

import numpy as np
import pytest

from tests.support.tiny_data import PETS_TEST, PETS_TRAIN, PETS_TRIMAP, mask, pets
from vitreous.data.image import ImageError
from vitreous.data.layouts.mask_classes import IGNORE
from vitreous.data.source import open_data, usable_as
from vitreous.errors import InputError


def opened(root, targets, split="train", **options):
    return open_data(str(root), split, size=(8, 8), targets=targets, **options)


def test_breeds(tmp_path):
    train, val = (opened(pets(tmp_path), "labels", split) for split in ("train", "val"))
    assert train.classes == val.classes == ("Abyssinian", "great_pyrenees")
    assert [train.target(index)["labels"] for index in range(4)] == [0, 0, 1, 1]
    assert [val.name(index) for index in range(2)] == ["test/Abyssinian_2.jpg", "test/great_pyrenees_9.jpg"]
    assert train.picture(0).size == (40, 30)


def test_the_pet_is_the_object(tmp_path):
    images = opened(pets(tmp_path), "labels")
    assert np.array_equal(np.asarray(images.object_mask(0)), PETS_TRIMAP == 1)
    images.target_file(0).unlink()
    assert not images.has_object_mask(0)
    assert images.object_mask(0) is None


def test_trimaps(tmp_path):
    images = opened(pets(tmp_path), "semantic")
    assert images.classes == ("background", "pet")
    wanted = np.select([PETS_TRIMAP == 1, PETS_TRIMAP == 2], [1, 0], IGNORE)
    assert np.array_equal(images.target(0)["semantic"], wanted)
    assert list(usable_as(str(tmp_path))) == ["labels", "semantic"]
    assert images.fingerprint != opened(tmp_path, "labels").fingerprint


def test_without_lists(tmp_path):
    pets(tmp_path, lists=False)
    parts = [opened(tmp_path, "labels", split) for split in ("train", "val")]
    assert sum(map(len, parts)) == 6
    assert all({part.target(i)["labels"] for i in range(len(part))} == {0, 1} for part in parts)


@pytest.mark.parametrize("prefix", ["", "./", "images/", "cats/", "a/b/"])
@pytest.mark.parametrize("suffix", ["", ".jpg"])
def test_lists_may_name_folders(tmp_path, prefix, suffix):
    """Whether the pictures lie in them or not; a folder is no part of the class."""
    pets(tmp_path)
    if prefix == "cats/":
        (tmp_path / "images" / "cats").mkdir()
        for stem in PETS_TRAIN:
            (tmp_path / "images" / f"{stem}.jpg").rename(tmp_path / "images" / "cats" / f"{stem}.jpg")
    for name, stems in (("trainval.txt", PETS_TRAIN), ("test.txt", PETS_TEST)):
        (tmp_path / "annotations" / name).write_text("".join(f"{prefix}{stem}{suffix} 1 1 1\n" for stem in stems))
    images = opened(tmp_path, "labels")
    assert images.classes == ("Abyssinian", "great_pyrenees")
    assert [images.target(index)["labels"] for index in range(4)] == [0, 0, 1, 1]
    assert images.picture(0).size == (40, 30)
    assert opened(tmp_path, "semantic").target(0)["semantic"].shape == PETS_TRIMAP.shape


def test_pictures_that_a_list_names_in_vain(tmp_path):
    pets(tmp_path)
    (tmp_path / "annotations" / "trainval.txt").write_text("extra/Siamese_1 1 1 1\n")
    images = opened(tmp_path, "labels")
    assert images.classes[images.target(0)["labels"]] == "Siamese"
    with pytest.raises(ImageError, match=r"extra/Siamese_1\.jpg' does not exist"):
        images.picture(0)


def test_what_is_wrong_is_named(tmp_path):
    pets(tmp_path)
    mask(tmp_path / "annotations" / "trimaps" / "Abyssinian_1.png", PETS_TRIMAP + 1)
    with pytest.raises(ImageError, match=r"Abyssinian_1\.png' holds 4; 1 pet"):
        opened(tmp_path, "semantic").target(0)
    (tmp_path / "images" / "Abyssinian_1.jpg").unlink()
    with pytest.raises(ImageError, match=r"Abyssinian_1\.jpg' does not exist"):
        opened(tmp_path, "labels").picture(0)
    (tmp_path / "annotations" / "test.txt").write_text("\n")
    with pytest.raises(InputError, match=r"split 'test' of .* lists no picture"):
        opened(tmp_path, "labels", "val")
