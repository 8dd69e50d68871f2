"""Names of classes where people keep them: beside the masks, as text, JSON or YAML."""

import json

import numpy as np
import pytest

from tests.support.tiny_data import mask, picture
from vitreous.data.layouts.mask_classes import CAMVID, IGNORE, values_or_colours
from vitreous.data.source import open_data
from vitreous.errors import InputError

VALUES = np.zeros((30, 40), np.uint8)
VALUES[10:20], VALUES[20:] = 1, 3


def camvid(root, stem="0001", values=VALUES):
    picture(root / "train" / f"{stem}.png")
    mask(root / "trainannot" / f"{stem}.png", values)
    return root


def opened(root):
    return open_data(str(root), "train", size=(8, 8), targets="semantic")


FOUR = ("sky", "building", "pole", "road")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("classes.json", json.dumps(FOUR)),
        ("classes.json", json.dumps({"classes": FOUR})),
        ("classes.json", json.dumps({name: value for value, name in enumerate(FOUR)})),
        ("classes.json", json.dumps([{"id": value, "name": name} for value, name in enumerate(FOUR)])),
        ("id2label.json", json.dumps({str(value): name for value, name in enumerate(FOUR)})),
        ("classes.yaml", "names:\n  0: sky\n  1: building\n  2: pole\n  3: road\n"),
        ("classes.yml", "- sky\n- building\n- pole\n- road\n"),
        ("classes.txt", "sky\nbuilding\npole\nroad\n"),
        ("trainannot/classes.txt", "sky\nbuilding\npole\nroad\n"),
        ("trainannot/classes.json", json.dumps(FOUR)),
        ("Classes.txt", "sky\nbuilding\npole\nroad\n"),
        ("LABELS.TXT", "sky\nbuilding\npole\nroad\n"),
        ("class_names.txt", "sky\nbuilding\npole\nroad\n"),
        ("classes.csv", "0,sky\n1,building\n2,pole\n3,road\n"),
        ("classes.csv", "name,id\nsky,0\nbuilding,1\npole,2\nroad,3\n"),
        ("labels.csv", 'id,name\n0,"sky"\n1,"building"\n2,"pole"\n3,"road"\n'),
        ("labels.json", json.dumps(FOUR)),
        ("class_names.yaml", "- sky\n- building\n- pole\n- road\n"),
    ],
)
def test_names_of_values(tmp_path, file, content):
    camvid(tmp_path)
    (tmp_path / file).write_text(content)
    images = opened(tmp_path)
    assert images.classes == FOUR
    assert np.array_equal(images.target(0)["semantic"], VALUES)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("labels.csv", "image,label\n0001.png,sunny\n"),
        ("labels.json", json.dumps({"images": [], "annotations": [], "categories": [{"id": 1, "name": "car"}]})),
        ("labels.csv", "image,label\n0001.png,3\n0002.png,1\n"),
        ("labels.json", json.dumps({"0001.png": "sunny"})),
        ("labels.json", json.dumps({"0001.PNG": 0, "0002.PNG": 1})),
    ],
)
def test_files_about_pictures_are_no_lists_of_classes(tmp_path, file, content):
    camvid(tmp_path)
    (tmp_path / file).write_text(content)
    assert opened(tmp_path).classes == ("0", "1", "3")
    (tmp_path / file).rename(tmp_path / file.replace("labels", "classes"))
    with pytest.raises(InputError, match=r"classes\.(csv|json) cannot be read"):
        opened(tmp_path)


def test_words_that_old_yaml_took_for_truth_values(tmp_path):
    camvid(tmp_path)
    for text in ("no: 0\nyes: 1\noff: 3\n", "0: no\n1: yes\n3: off\n"):
        (tmp_path / "classes.yaml").write_text(text)
        assert opened(tmp_path).classes == ("no", "yes", "off")


def test_values_with_gaps(tmp_path):
    camvid(tmp_path)
    (tmp_path / "classes.json").write_text(json.dumps({"road": 3, "sky": 0, "building": 1}))
    images = opened(tmp_path)
    assert images.classes == ("sky", "building", "road")
    assert np.array_equal(images.target(0)["semantic"], np.array([0, 1, 9, 2])[VALUES])


def test_colours(tmp_path):
    colours = np.array([[128, 0, 0], [0, 128, 0], [9, 9, 9], [0, 0, 0]], np.uint8)
    camvid(tmp_path, values=colours[VALUES])
    (tmp_path / "classes.json").write_text('{"Sky": [128, 0, 0], "Road": [0, 128, 0], "Void": [0, 0, 0]}')
    images = opened(tmp_path)
    assert images.classes == ("Sky", "Road")
    assert np.array_equal(images.target(0)["semantic"], np.array([0, 1, 9, IGNORE])[VALUES])
    tool = [{"name": "Sky", "color": [128, 0, 0], "id": 9}, {"name": "Road", "color": [0, 128, 0], "id": 4}]
    assert values_or_colours(tool) == [((128, 0, 0), "Sky"), ((0, 128, 0), "Road")]


def test_camvid_is_known_by_its_files(tmp_path):
    values = np.where(VALUES == 3, 11, VALUES)
    images = opened(camvid(tmp_path, "0006R0_f00930", values))
    assert images.classes == CAMVID
    assert np.array_equal(images.target(0)["semantic"], np.where(values == 11, IGNORE, values))
    assert opened(camvid(tmp_path / "other")).classes == ("0", "1", "3"), "what nobody names has its value as a name"


@pytest.mark.parametrize(
    "content",
    [
        *(
            "",
            "{",
            "null",
            "7",
            "[]",
            "{}",
            '["sky", 3]',
            '[["sky"]]',
            '{"sky": null}',
            '{"sky": -1}',
            '{"sky": 70000}',
        ),
        *('{"sky": 1, "road": 1}', '{"sky": [1, 2]}', '{"sky": [1, 2, 999]}', '{"sky": [1, 2, 3], "road": 4}'),
        *("[" * 100_000, '["' + "x" * 2_000_000 + '"]', '{"sky": 1' + "0" * 5000 + "}", "\ud800"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, content):
    camvid(tmp_path)
    (tmp_path / "classes.json").write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(InputError, match=r"classes\.json (cannot be read|has 2,000,004 bytes)"):
        opened(tmp_path)


def test_masks_in_another_place(tmp_path):
    """Class folders with masks beside them serve both tasks; pictures and masks need no splits."""
    picture(tmp_path / "pets" / "train" / "cat" / "1.jpg")
    mask(tmp_path / "pets" / "masks" / "train" / "cat" / "1.png", VALUES)
    assert len(opened(tmp_path / "pets")) == 1
    for number in range(10):
        picture(tmp_path / "pairs" / "images" / f"{number}.jpg", seed=number)
        mask(tmp_path / "pairs" / "labels" / f"{number}_P.png", VALUES)
    (tmp_path / "pairs" / "codes.txt").write_text("sky\nbuilding\npole\nroad\n")
    images = opened(tmp_path / "pairs")
    assert (images.classes, images.val_fraction) == (FOUR, 0.2)
    assert images.name(0).endswith(".jpg")
    assert "/" not in images.name(0)
