import pytest

from tests.support.tiny_data import picture, voc_page
from vitreous.data.image import ImageError
from vitreous.data.layouts.voc import open_voc
from vitreous.data.source import describe, open_data
from vitreous.errors import InputError


@pytest.fixture
def root(tmp_path):
    """Two pictures to train on and one held out, which shows a class of its own."""
    pages = {
        "one": [("dog", (4, 5, 14, 13), False), ("cat", (1, 1, 9, 9), True)],
        "two": [],
        "three": [("cow", (0.5, 2, 7, 8), False)],
    }
    for seed, (name, objects) in enumerate(pages.items()):
        picture(tmp_path / "JPEGImages" / f"{name}.png", seed=seed)
        voc_page(tmp_path / "Annotations" / f"{name}.xml", objects, name=f"{name}.jpg")
    (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
    (tmp_path / "ImageSets" / "Main" / "train.txt").write_text("one\ntwo  -1\n\n")
    (tmp_path / "ImageSets" / "Main" / "val.txt").write_text("three\n")
    return tmp_path


def test_what_is_read(root):
    images = open_data(str(root), "train", size=(8, 8), targets="boxes")
    assert "Pascal VOC): 2 train images, 3 classes" in describe(str(root), "boxes", train=images)
    assert images.classes == ("cat", "cow", "dog"), "of all splits"
    assert [images.name(index) for index in range(2)] == ["train/one.png", "train/two.png"]
    objects = images[0][1]["objects"]
    assert objects.boxes.tolist() == [[4, 5, 14, 13], [1, 1, 9, 9]]
    assert objects.labels.tolist() == [2, 0]
    assert objects.crowd.tolist() == [False, True], "a difficult one need not be found"
    assert len(images[1][1]["objects"]) == 0
    assert open_voc(root, "val").target(0)["objects"].boxes.tolist() == [[0.5, 2, 7, 8]]


def test_pages_beside_their_pictures(tmp_path):
    picture(tmp_path / "train" / "a b.jpg")
    voc_page(tmp_path / "train" / "a b.xml", [("cat", (1, 2, 3, 4), False)], name="elsewhere.jpg", size=(0, 0))
    images = open_data(str(tmp_path), "train", size=(8, 8), targets="boxes")
    assert (images.name(0), images.picture(0).size) == ("train/a b.jpg", (40, 30))


def test_classes_may_be_listed(root):
    (root / "classes.txt").write_text("dog\ncat\ncow\n")
    assert open_voc(root, "train").classes == ("dog", "cat", "cow")
    (root / "classes.txt").write_text("dog\ncow\n")
    with pytest.raises(InputError, match=r"one\.xml has an object of class 'cat', which classes\.txt lacks"):
        open_voc(root, "train")
    assert len(open_voc(root, "train", strict=False).faults) == 1


def test_what_is_wrong_is_named(root):
    page = root / "Annotations" / "two.xml"
    page.write_text("<annotation><object><name>cat</name></object></annotation>")
    with pytest.raises(InputError, match=r"object 1 of .*two\.xml has no box"):
        open_voc(root, "train")
    page.write_text("<annotation>")
    with pytest.raises(InputError, match=r"two\.xml cannot be read"):
        open_voc(root, "train")
    page.unlink()
    with pytest.raises(InputError, match=r"two\.xml is missing"):
        open_voc(root, "train")
    assert [fault.rpartition("/")[2] for fault in open_voc(root, "train", strict=False).faults] == [
        "two.xml is missing"
    ]
    (root / "JPEGImages" / "one.png").unlink()
    with pytest.raises(ImageError, match=r"one\.jpg' does not exist"):
        open_voc(root, "train", strict=False).picture(0)


def test_nothing_to_learn(root):
    (root / "ImageSets" / "Main" / "train.txt").write_text("two\n")
    with pytest.raises(InputError, match="no object to learn from"):
        open_voc(root, "train")
    (root / "ImageSets" / "Main" / "train.txt").write_text("\n")
    with pytest.raises(InputError, match="lists no picture"):
        open_voc(root, "train")
