"""What `datasets.save_to_disk` leaves behind."""

import sys

import datasets
import numpy as np
import pytest
from PIL import Image

import vitreous_command
from vitreous.data.source import describe, open_data
from vitreous.errors import InputError, to_install_extra

datasets.disable_progress_bars()
FEATURES = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}


def picture(number: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (7, 9, 3), np.uint8))


def rows(count: int, **changes) -> datasets.Dataset:
    content = {"image": [picture(n) for n in range(count)], "label": [n % 2 for n in range(count)]}
    features = datasets.Features(FEATURES | {name: feature for name, (_, feature) in changes.items()})
    return datasets.Dataset.from_dict(content | {name: values for name, (values, _) in changes.items()}, features)


def opened(data, split="train"):
    return open_data(str(data), split, size=(8, 8))


@pytest.fixture
def root(tmp_path):
    datasets.DatasetDict(train=rows(5), validation=rows(3)).save_to_disk(tmp_path / "pets")
    return tmp_path / "pets"


def test_pictures_and_labels(root):
    images = opened(root)
    assert (len(images), len(opened(root, "val")), images.classes) == (5, 3, ("cat", "dog"))
    found, target = images[3]
    assert np.array_equal(np.asarray(found), np.asarray(picture(3)))
    assert (target, images.name(3)) == ({"labels": 1}, "train/3")
    assert "Hugging Face data set" in describe(str(root), train=images)
    assert images.fingerprint == opened(root).fingerprint != opened(root, "val").fingerprint


def test_one_split_by_itself(tmp_path):
    rows(4).save_to_disk(tmp_path / "one")
    assert len(opened(tmp_path / "one")) == 4
    with pytest.raises(InputError, match="no split 'val'"):
        opened(tmp_path / "one", "val")


def test_columns_are_found_by_their_kind(tmp_path):
    coarse = datasets.ClassLabel(names=["x"])
    extra = {"coarse": ([0] * 4, coarse), "text": (["t"] * 4, datasets.Value("string"))}
    data = rows(4, **extra).rename_columns({"image": "img", "label": "fine_label"})
    data.select_columns(["coarse", "text", "img", "fine_label"]).save_to_disk(tmp_path / "odd")
    assert opened(tmp_path / "odd").classes == ("cat", "dog")
    rows(4).cast_column("label", datasets.Value("int64")).save_to_disk(tmp_path / "bare")
    with pytest.raises(InputError, match=r"columns image \(Image\), label \(Value\); one of images"):
        opened(tmp_path / "bare")


def test_what_cannot_be_used(tmp_path):
    rows(2, label=([0, -1], FEATURES["label"])).save_to_disk(tmp_path / "a")
    with pytest.raises(InputError, match=r"row 1 .* has no label"):
        opened(tmp_path / "a")
    datasets.Dataset.from_dict(
        {"image": [None, {"bytes": b"<html>", "path": None}], "label": [0, 1]}, datasets.Features(FEATURES)
    ).save_to_disk(tmp_path / "b")
    images = opened(tmp_path / "b")
    for index, reason in enumerate(("is empty", "holds HTML")):
        with pytest.raises(InputError, match=f"image 'train/{index}' {reason}"):
            images.picture(index)
    (tmp_path / "b" / "state.json").write_text("{")
    with pytest.raises(InputError, match=r"state\.json cannot be read"):
        opened(tmp_path / "b")


def test_without_the_package_it_says_what_to_install(root, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert vitreous_command.main(["check", str(root), "--workers", "0"]) == 2
    assert to_install_extra("data") in capsys.readouterr().err
