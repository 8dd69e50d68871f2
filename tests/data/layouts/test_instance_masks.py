"""Masks that number objects: boxes and masks to detect, one class to segment."""

import numpy as np
import pytest

from tests.support.tiny_data import PENN_FUDAN_MASK, mask, penn_fudan, picture
from vitreous.data.image import ImageError
from vitreous.data.source import open_data, recognise
from vitreous.errors import InputError


def opened(root, targets, split="train", **options):
    return open_data(str(root), split, size=(8, 8), targets=targets, **options)


def test_objects(tmp_path):
    images = opened(penn_fudan(tmp_path), "boxes")
    assert images.classes == ("pedestrian",)
    assert len(images) + len(opened(tmp_path, "boxes", "val")) == 12
    objects = images.target(0)["objects"]
    assert objects.boxes.tolist() == [[3, 2, 9, 10], [20, 5, 40, 8]]
    assert objects.area.tolist() == [48, 60]
    assert np.array_equal(objects.decoded_masks(30, 40), [PENN_FUDAN_MASK == 1, PENN_FUDAN_MASK == 2])
    ids = [id for index in range(len(images)) for id in images.target(index)["objects"].ids]
    assert len(set(ids)) == len(ids)


def test_one_class(tmp_path):
    images = opened(penn_fudan(tmp_path), "semantic")
    assert images.classes == ("background", "pedestrian")
    assert np.array_equal(images.target(0)["semantic"], PENN_FUDAN_MASK > 0)
    with pytest.raises(InputError, match="leave out --ignore"):
        opened(tmp_path, "semantic", ignore=(2,))


def test_other_names(tmp_path):
    for number in range(3):
        picture(tmp_path / "images" / f"{number}.jpg", seed=number)
        mask(tmp_path / "instances" / f"{number}.png", PENN_FUDAN_MASK)
    assert opened(tmp_path, "boxes").classes == ("object",)
    (tmp_path / "classes.txt").write_text("cell\n")
    assert opened(tmp_path, "boxes").classes == ("cell",)
    (tmp_path / "classes.txt").write_text("cell\nnucleus\n")
    with pytest.raises(InputError, match="names 2 classes"):
        opened(tmp_path, "boxes")


def test_what_is_wrong_is_named(tmp_path):
    penn_fudan(tmp_path, 4)
    images = opened(tmp_path, "boxes", "val", val_fraction=1)
    (tmp_path / "PedMasks" / "FudanPed00000_mask.png").unlink()
    with pytest.raises(ImageError, match=r"FudanPed00000_mask\.png' does not exist"):
        images.target(0)
    mask(tmp_path / "PedMasks" / "FudanPed00001_mask.png", PENN_FUDAN_MASK[:-1])
    with pytest.raises(ImageError, match="has 40 x 29 pixels, its picture 40 x 30"):
        images.target(1)
    mask(tmp_path / "PedMasks" / "FudanPed00002_mask.png", PENN_FUDAN_MASK * 0)
    assert len(images.target(2)["objects"]) == 0
    for file in (tmp_path / "PedMasks").iterdir():
        file.unlink()
    with pytest.raises(InputError, match=r"no picture in .* has a mask"):
        opened(tmp_path, "boxes")


def test_fingerprint_follows_the_masks(tmp_path):
    penn_fudan(tmp_path)
    before = opened(tmp_path, "boxes").fingerprint
    for file in (tmp_path / "PedMasks").iterdir():
        mask(file, np.random.default_rng(0).integers(0, 3, PENN_FUDAN_MASK.shape))
    assert opened(tmp_path, "boxes").fingerprint != before


def test_is_no_folder_of_classes(tmp_path):
    penn_fudan(tmp_path)
    with pytest.raises(InputError, match="looks like pictures with masks of instances; use targets boxes or semantic"):
        recognise(str(tmp_path), "labels")
