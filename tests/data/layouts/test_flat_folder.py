"""Which folders are classes without splits, and which are something else."""

import pytest

from tests.support.tiny_data import annotation, coco, mask, picture, voc_page
from vitreous.data.layouts.flat_folder import is_flat
from vitreous.data.source import load_layouts, open_data, recognise, usable_as
from vitreous.errors import InputError

FLAT = "class folders without splits"


def folders(root, *names):
    for place, name in enumerate(names):
        picture(root / name, seed=place)
    return root


@pytest.mark.parametrize(
    "names",
    [
        ("cat/1.png", "dog/1.png"),
        ("cat/deep/1.png", "dog/1.JPG", "empty"),
        ("bus/1.png", "car/1.png", "train/1.png"),
        ("0/1.png", "1/1.png", "10/1.png"),
        ("mask/1.png", "no mask/1.png"),
        ("trainer/1.png", "value/1.png", "tests/1.png"),
    ],
)
def test_recognised(tmp_path, names):
    for name in names:
        if "." not in name:
            (tmp_path / name).mkdir()
        else:
            folders(tmp_path, name)
    assert recognise(str(tmp_path)).name == FLAT


@pytest.mark.parametrize(
    "names",
    [
        ("train/cat/1.png", "val/cat/1.png"),
        ("train/1.png", "val/1.png"),
        ("train/cat/1.png", "other/1.png", "more/1.png"),
        ("Train/cat/1.png", "Test/cat/1.png"),
        ("training_set/cat/1.png", "test_set/cat/1.png"),
        ("train2017/1.png", "val2017/1.png"),
        ("cats/1.png", "dogs/1.png", "test/1.png"),
        ("images/1.png", "masks/1.png"),
        ("JPEGImages/1.png", "Annotations/1.png"),
        ("cat/1.png",),
    ],
)
def test_not_recognised(tmp_path, names):
    assert not is_flat(folders(tmp_path, *names))


def test_folders_of_other_layouts(tmp_path):
    """Asked for classes, none of them passes for a folder of classes."""
    coco(tmp_path / "coco", [annotation(1)])
    picture(tmp_path / "voc" / "JPEGImages" / "a.png")
    voc_page(tmp_path / "voc" / "Annotations" / "a.xml", [("cat", (1, 2, 9, 9), False)])
    picture(tmp_path / "masks" / "images" / "train" / "a.png")
    mask(tmp_path / "masks" / "masks" / "train" / "a.png", [[0, 1]])
    for name in ("coco", "voc", "masks"):
        assert not is_flat(tmp_path / name)


def test_splits_of_another_name_are_pointed_out(tmp_path):
    folders(tmp_path, "Train/cat/1.png", "Test/cat/1.png")
    with pytest.raises(InputError, match="folders Test, Train must be called train, val, test to be splits"):
        recognise(str(tmp_path))


@pytest.mark.parametrize(
    "names",
    [
        ("photos/cat/1.png", "photos/dog/1.png"),
        ("photos/train/cat/1.png", "photos/val/cat/1.png", "__MACOSX/._1.png"),
    ],
)
@pytest.mark.parametrize("ask", [recognise, usable_as])
def test_data_one_folder_deeper_are_pointed_out(tmp_path, names, ask):
    """As they lie after an archive was unpacked into a folder of its own name."""
    folders(tmp_path / "photos", *names)
    inner = tmp_path / "photos" / "photos"
    with pytest.raises(InputError, match=rf"its layout is not recognised; did you mean '{inner}'\?"):
        ask(str(tmp_path / "photos"))
    assert recognise(str(inner))


def test_one_class_is_told(tmp_path):
    folders(tmp_path, "cat/1.png", "cat/2.png")
    with pytest.raises(InputError, match="it has one class folder, 'cat', and a classifier needs two or more"):
        recognise(str(tmp_path))
    folders(tmp_path / "bare", "images/1.png")
    with pytest.raises(InputError, match="its layout is not recognised; accepted"):
        recognise(str(tmp_path / "bare"))


def test_empty_class_is_refused_by_name(tmp_path):
    folders(tmp_path, "cat/1.png", "dog/1.png", "cow/1.png")
    (tmp_path / "elk").mkdir()
    with pytest.raises(InputError, match=r"elk' holds no image"):
        open_data(str(tmp_path), "train", size=(8, 8))


def test_every_layout_says_how_it_looks():
    layouts = load_layouts()
    assert len({layout.example for layout in layouts}) == len({layout.name for layout in layouts}) == len(layouts)


def test_folders_of_splits_are_classes_only_if_no_other_layout_has_them(tmp_path):
    folders(tmp_path, "train/images/1.png", "val/images/1.png")
    mask(tmp_path / "train" / "masks" / "1.png", [[0, 1]])
    assert list(usable_as(str(tmp_path))) == ["semantic"]
    folders(tmp_path / "both", "train/cat/1.png", "val/cat/1.png")
    mask(tmp_path / "both" / "masks" / "train" / "cat" / "1.png", [[0, 1]])
    assert {targets: layout.name for targets, layout in usable_as(str(tmp_path / "both")).items()} == {
        "labels": "class folders",
        "semantic": "pictures with masks",
    }
    folders(tmp_path / "loose", "train/1.png", "val/1.png")
    with pytest.raises(InputError, match=r"\(train, val hold no class folders, nor what other layouts have\)"):
        usable_as(str(tmp_path / "loose"))
    with pytest.raises(InputError, match=r"accepted:(.|\n)*YOLO|labels/train/\*\.txt(.|\n)*targets boxes or keypoints"):
        usable_as(str(tmp_path / "loose"))
