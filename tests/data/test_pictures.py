"""Names of pictures on a command line: files, folders, patterns and embedded samples."""

import numpy as np
import pytest
from PIL import Image

from vitreous.data.pictures import find_pictures
from vitreous.data.shapes import CATEGORIES, Shapes
from vitreous.errors import InputError

SIZE = (32, 32)


@pytest.fixture
def photos(tmp_path):
    for name in ("cat/b.png", "cat/a.JPG", "dog/c.webp"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), "red").save(path)
    (tmp_path / "photos" / "notes.txt").write_text("not an image")
    return tmp_path / "photos"


def test_folder_gives_its_images_sorted_with_the_class_folder_as_label(photos):
    found = find_pictures([str(photos)], size=SIZE)
    assert [picture.name.removeprefix(f"{photos.as_posix()}/") for picture in found] == [
        "cat/a.JPG",
        "cat/b.png",
        "dog/c.webp",
    ]
    assert [picture.label for picture in found] == ["cat", "cat", "dog"]
    assert found[0].load().size == (8, 8)


def test_pattern_and_file_and_no_doubles(photos):
    found = find_pictures([str(photos / "*" / "*.png"), str(photos / "cat" / "b.png")], size=SIZE)
    assert [picture.name for picture in found] == [(photos / "cat" / "b.png").as_posix()]


def test_name_with_brackets_is_a_file_first(tmp_path):
    odd = tmp_path / "a[1].png"
    Image.new("RGB", (4, 4)).save(odd)
    assert len(find_pictures([str(odd)], size=SIZE)) == 1


def test_embedded_samples_are_those_of_the_data_set():
    found = find_pictures(["shapes:val:2-4", "shapes:hard:train:7"], size=SIZE)
    assert [picture.name for picture in found] == [
        "shapes:val:2",
        "shapes:val:3",
        "shapes:val:4",
        "shapes:hard:train:7",
    ]
    scene = Shapes("val", size=SIZE)[3]
    assert (np.asarray(found[1].load()) == scene.image).all()
    assert found[1].label == CATEGORIES[scene.label]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "no images given"),
        (["nowhere.png"], "no image at 'nowhere.png'"),
        (["shapes:val"], "shapes:val:0-7"),
        (["shapes:val:5-2"], "smaller index first"),
        (["shapes:vel:0-2"], "val"),
        (["shapes:tough:val:0"], "hard"),
    ],
)
def test_bad_names_say_what_is_accepted(names, message):
    with pytest.raises(InputError, match=message):
        find_pictures(names, size=SIZE)


def test_folder_without_images(tmp_path):
    with pytest.raises(InputError, match="holds no image"):
        find_pictures([str(tmp_path)], size=SIZE)
