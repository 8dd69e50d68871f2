import numpy as np
import pytest
from PIL import Image

from vitreous.data.image_set import Without
from vitreous.data.source import describe, open_data, quarantine_text, read_quarantine
from vitreous.errors import InputError


@pytest.fixture
def root(tmp_path):
    for split in ("train", "val"):
        for name in ("ant", "cat"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (8, 6), (number, 0, 0)).save(tmp_path / split / name / f"{number}.png")
    return tmp_path


def opened(root, split="train", **options):
    return open_data(str(root), split, size=(8, 8), **options)


@pytest.mark.parametrize(
    "name", ["plain.jpg", "tab\there", "line\nbreak\r", "back\\slash\\n", " space ", "caf\u00e9", "\udcff.jpg"]
)
def test_names_come_back(tmp_path, name):
    (tmp_path / "q.txt").write_bytes(quarantine_text({name: "why\nnot", "other": "x"}).encode(errors="surrogateescape"))
    assert read_quarantine(tmp_path / "q.txt") == {name: "why not", "other": "x"}


def test_a_list_may_be_written_by_hand(tmp_path):
    (tmp_path / "q.txt").write_text("# mine\n\ntrain/a.jpg\r\ntrain/b.jpg\tblurred\n")
    assert read_quarantine(tmp_path / "q.txt") == {"train/a.jpg": "", "train/b.jpg": "blurred"}


def test_listed_pictures_are_left_out_everywhere(root):
    whole = opened(root)
    (root / "quarantine.txt").write_text("train/ant/1.png\ttorn\ntrain/cat/0.png\tblurred\nnothing/like/it.png\n")
    images = opened(root)
    assert [images.name(index) for index in range(len(images))] == [
        "train/ant/0.png",
        "train/ant/2.png",
        "train/cat/1.png",
        "train/cat/2.png",
    ]
    assert np.asarray(images[1][0])[0, 0, 0] == 2
    assert images.target(2) == {"labels": 1}
    assert images.encoded(3) == root / "train" / "cat" / "2.png"
    assert "2 train images left out by" in describe(str(root), train=images)
    assert images.fingerprint.startswith(f"{whole.fingerprint} without 2 (")
    held_out = opened(root, "val")
    assert len(held_out) == 6
    assert " without " not in held_out.fingerprint


def test_another_list_is_another_fingerprint(root):
    fingerprints = set()
    for name in ("train/ant/1.png", "train/ant/2.png"):
        (root / "quarantine.txt").write_text(f"{name}\tx\n")
        fingerprints.add(opened(root).fingerprint)
    assert len(fingerprints) == 2


def test_a_list_elsewhere_goes_before_the_one_beside_the_data(root, tmp_path_factory):
    (root / "quarantine.txt").write_text("train/ant/1.png\n")
    other = tmp_path_factory.mktemp("elsewhere") / "mine.txt"
    other.write_text("train/ant/0.png\ntrain/ant/1.png\n")
    assert len(opened(root, quarantine=other)) == 4
    with pytest.raises(InputError, match="cannot read --quarantine"):
        opened(root, quarantine=other.with_name("none"))


def test_leaving_out_all_is_refused(root):
    names = [f"train/{name}/{number}.png" for name in ("ant", "cat") for number in range(3)]
    (root / "quarantine.txt").write_text("\n".join(names))
    with pytest.raises(InputError, match="leaves no picture of split 'train'"):
        opened(root)


def test_lengths_of_files_shrink_with_what_is_left_out(root):
    images = opened(root)
    images.file_lengths = (2, 1, 3)
    kept = Without(images, {"train/ant/0.png", "train/ant/2.png"}, "a list")
    assert kept.file_lengths == (1, 3)
