import numpy as np
import pytest

from tests.support.tiny_data import picture
from vitreous.data.image import ImageError
from vitreous.data.source import describe, open_data
from vitreous.errors import InputError


@pytest.fixture
def root(tmp_path):
    for seed, name in enumerate(("a", "b")):
        picture(tmp_path / "images" / "train" / f"{name}.png", seed=seed)
    (tmp_path / "labels" / "train").mkdir(parents=True)
    (tmp_path / "data.yaml").write_text("names: {0: cat, 1: dog}\n")
    return tmp_path


def write(root, text, name="a"):
    (root / "labels" / "train" / f"{name}.txt").write_text(text)


def opened(root, targets="boxes"):
    return open_data(str(root), "train", size=(8, 8), targets=targets)


def test_boxes(root):
    write(root, "1 0.5 0.5 0.25 0.2\n\n0 0.1 0.1 0.2 0.2\n")
    images = opened(root)
    assert "YOLO): 2 train images, 2 classes" in describe(str(root), "boxes", train=images)
    objects = images[0][1]["objects"]
    assert objects.boxes == pytest.approx(np.array([[15, 12, 25, 18], [0, 0, 8, 6]]))
    assert (objects.labels.tolist(), objects.masks) == ([1, 0], None)
    assert len(images[1][1]["objects"]) == 0, "no text file, no objects"
    assert len({*objects.ids.tolist()}) == 2


def test_outlines(root):
    write(root, "0 0.25 0.2 0.75 0.2 0.75 0.8 0.25 0.8\n1 0.5 0.5 0.25 0.2\n")
    objects = opened(root).target(0)["objects"]
    assert objects.boxes[0].tolist() == pytest.approx([10, 6, 30, 24])
    assert objects.area.tolist() == pytest.approx([360, 60])
    assert objects.decoded_masks(30, 40).sum((1, 2)).tolist() == [360, 60]
    assert opened(root).target(1)["objects"].masks == (), "all samples are alike"


def test_keypoints(root):
    (root / "data.yaml").write_text("names: [cat]\nkpt_shape: [3, 3]\nflip_idx: [0, 2, 1]\n")
    write(root, "0 0.5 0.5 0.25 0.2 0.5 0.5 2 0.1 0.1 1 0 0 0\n")
    images = opened(root, "keypoints")
    assert (len(images), images.keypoint_pairs) == (1, ((1, 2),))
    assert images.target(0)["objects"].keypoints[0].tolist() == [[20, 15, 2], [4, 3, 1], [0, 0, 0]]
    (root / "data.yaml").write_text("names: [cat]\nkpt_shape: [3, 2]\n")
    write(root, "0 0.5 0.5 0.25 0.2 0.5 0.5 0.1 0.1 0 0\n")
    assert opened(root, "keypoints").target(0)["objects"].keypoints[0, :, 2].tolist() == [2, 2, 0]


def test_folders_the_other_way_round(tmp_path):
    picture(tmp_path / "valid" / "images" / "a.jpg")
    (tmp_path / "valid" / "labels").mkdir()
    (tmp_path / "valid" / "labels" / "a.txt").write_text("0 0.5 0.5 1 1\n")
    (tmp_path / "data.yaml").write_text("names: [cat]\n")
    images = open_data(str(tmp_path), "val", size=(8, 8), targets="boxes")
    assert (images.name(0), len(images.target(0)["objects"])) == ("valid/a.jpg", 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2 0.5 0.5 0.1 0.1", r"line 1 of .*a\.txt' has the class 2; there are 2"),
        ("0.5 0.5 0.5 0.1 0.1", "has the class 0.5"),
        ("0 0.5 0.5 0.1", "neither a box of four numbers nor an outline"),
        ("0 0.5 0.5 cat 1", "something else than numbers"),
        ("0 0.5 0.5 nan 1", "not finite"),
    ],
)
def test_wrong_lines_are_named(root, line, message):
    write(root, line)
    with pytest.raises(ImageError, match=message):
        opened(root).target(0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: x\n", "does not name its classes"),
        ("names: [cat\n", r"data\.yaml cannot be read: line 2"),
        ("names: [cat]\nkpt_shape: 3\n", "kpt_shape"),
        ("names: [cat]\nkpt_shape: [3, 3]\nflip_idx: [0, 1]\n", "flip_idx"),
    ],
)
def test_wrong_descriptions(root, text, message):
    write(root, "0 0.5 0.5 0.1 0.1")
    (root / "data.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        opened(root)


def test_fingerprint_follows_the_files(root):
    write(root, "0 0.5 0.5 0.1 0.1")
    before = opened(root).fingerprint
    assert opened(root).fingerprint == before
    write(root, "0 0.5 0.5 0.1 0.15")
    assert opened(root).fingerprint != before


def test_nothing_to_learn_is_refused(root):
    write(root, "\n")
    with pytest.raises(InputError, match=r"no text file in '.*train' names an object"):
        opened(root)
    assert len(open_data(str(root), "train", size=(8, 8), targets="boxes", strict=False)) == 2, "for a check it is read"


def test_hidden_files_are_no_pictures(root):
    write(root, "0 0.5 0.5 1 1\n")
    (root / "images" / "train" / "._a.png").write_bytes(b"left behind by a Mac")
    assert len(opened(root)) == 2


def test_words_that_old_yaml_took_for_truth_values_are_names(root):
    for text in ("names: [no, yes]\n", "names: {0: no, 1: yes}\n", "names:\n  - no\n  - yes\n"):
        (root / "data.yaml").write_text(text)
        write(root, "1 0.5 0.5 0.25 0.2\n")
        assert opened(root).classes == ("no", "yes")
