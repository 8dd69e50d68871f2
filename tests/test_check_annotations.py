"""`vitreous check` of objects and masks: each kind of trouble is planted and found."""

import json
import sys

import numpy as np
import pytest

import vitreous_command
from tests.support.tiny_data import annotation, coco, mask, picture, voc_page
from vitreous.check import Report, check
from vitreous.data.source import open_data
from vitreous.errors import InputError
from vitreous.shapes import shapes


def looked(root, **options) -> Report:
    return check(str(root), workers=0, smallest=16, **options)


def kinds(report: Report) -> dict[str, tuple[str, ...]]:
    return {finding.kind: finding.images for finding in report.findings}


GOOD = [annotation(n, image=10 + n % 2, category=category) for n, category in enumerate((3, 7, 90))]


@pytest.fixture
def root(tmp_path):
    coco(tmp_path, GOOD)
    coco(tmp_path, GOOD, split="val")
    return tmp_path


def test_clean_objects_have_no_findings(root, capsys):
    report = looked(root)
    assert (report.findings, report.exit_code, report.task) == ([], 0, "detect")
    assert report.images == {"train": 2, "val": 2}
    assert report.counts["train"] == {"dog": 1, "cat": 1, "cow": 1}
    shown = capsys.readouterr().out
    assert "(COCO): 2 train, 2 val images, 3 classes" in shown
    assert "objects of each" in shown
    assert "stem" not in shown


def test_bad_boxes_and_empty_images(root):
    bad = [annotation(5, box=(3, 3, 0, 4)), annotation(6, box=(9, 9, -4, 3)), annotation(7, box=(100, 9, 5, 5))]
    coco(root, [GOOD[0], *bad, annotation(8, image=11, iscrowd=1, box=(30, 20, 20, 5))])
    report = looked(root, json=root / "report.json")
    assert kinds(report) == {
        "boxes": (
            "train/0.png: annotation 5 is without area: x 3 to 3, y 3 to 7",
            "train/0.png: annotation 6 is inverted: x 9 to 5, y 9 to 12",
            "train/0.png: annotation 7 is outside: x 100 to 105, y 9 to 14",
        ),
        "beyond": ("train/1.png: annotation 8 is x 30 to 50, y 20 to 25",),
        "empty": ("train/1.png",),
        "empty classes": ("cow",),
    }
    assert [finding.kind for finding in report.problems] == ["boxes"]
    assert report.quarantine == {}
    recorded = json.loads((root / "report.json").read_text())
    assert (recorded["task"], recorded["splits"]["train"]["images"]) == ("detect", 2)


def test_pictures_with_bad_boxes_can_be_left_out(root):
    coco(root, [*GOOD, annotation(5, box=(3, 3, 0, 4))])
    looked(root, leave_out=("boxes",))
    images = open_data(str(root), "train", size=(8, 8), targets="boxes")
    assert [images.name(index) for index in range(len(images))] == ["train/1.png"]
    assert images.category_ids == (3, 7, 90)


def test_faults_and_missing_pictures(root):
    coco(root, [*GOOD, annotation(2), annotation(5, category=4)])
    (root / "images" / "train" / "1.png").unlink()
    found = kinds(looked(root))
    assert [fault.partition("json ")[2] for fault in found["faults"]] == [
        "has the same id as another one",
        "has the category 4, which the file does not list",
    ]
    assert found["unreadable"] == ("train/1.png: does not exist; check the path",)


def test_masks_of_objects_are_decoded(root):
    coco(root, [*GOOD, annotation(5, segmentation={"size": [30, 40], "counts": [5, 6]})])
    report = looked(root)
    assert kinds(report)["annotations"] == (
        "train/0.png: the mask of annotation 5 cannot be used: its run lengths cover 11 pixels, the picture has 1200",
    )
    assert list(report.quarantine) == ["train/0.png"]


def test_the_same_picture_in_two_splits_is_a_leak(root):
    picture(root / "images" / "val" / "0.png", seed=500)  # the first picture to train on
    assert kinds(looked(root)) == {"leaks": ("train/0.png = val/0.png",)}


def test_pages_of_voc(tmp_path):
    picture(tmp_path / "train" / "a.png")
    voc_page(tmp_path / "train" / "a.xml", [("cat", (4, 4, 9, 9), False), ("dog", (9, 9, 9, 12), False)])
    picture(tmp_path / "train" / "b.png", seed=1)
    (tmp_path / "train" / "b.xml").write_text("<annotation>")
    found = kinds(looked(tmp_path))
    assert found["boxes"] == ("train/a.png: annotation 2 is without area: x 9 to 9, y 9 to 12",)
    assert [fault.partition("cannot")[1] for fault in found["faults"]] == ["cannot"]
    assert found["empty"] == ("train/b.png",)


def test_lines_of_yolo(tmp_path):
    for name, line in (("a", "0 0.5 0.5 0.1 0.1"), ("b", "7 0.5 0.5 0.1 0.1")):
        picture(tmp_path / "images" / "train" / f"{name}.png", seed=ord(name))
        (tmp_path / "labels" / "train").mkdir(parents=True, exist_ok=True)
        (tmp_path / "labels" / "train" / f"{name}.txt").write_text(line)
    (tmp_path / "data.yaml").write_text("names: [cat]\n")
    report = looked(tmp_path)
    ((problem,),) = (finding.images for finding in report.problems)
    assert "b.txt' has the class 7; there are 1, from 0 on" in problem
    assert list(report.quarantine) == ["train/b.png"]


def test_masks(tmp_path, capsys):
    values = np.zeros((30, 40))
    values[5:] = 1
    for place, name in enumerate("abcd"):
        picture(tmp_path / "images" / "train" / f"{name}.png", seed=place)
        mask(tmp_path / "masks" / "train" / f"{name}.png", values)
    (tmp_path / "classes.txt").write_text("sky\nsea\n")
    mask(tmp_path / "masks" / "train" / "b.png", values + 4)
    (tmp_path / "masks" / "train" / "c.png").unlink()
    mask(tmp_path / "masks" / "train" / "d.png", np.full((30, 40), 255))
    report = looked(tmp_path)
    found = kinds(report)
    assert report.task == "segment"
    assert report.counts == {"train": {"sky": 1, "sea": 1}}
    assert [("holds 4, 5" in text, "does not exist" in text) for text in found["annotations"]] == [
        (True, False),
        (False, True),
    ]
    assert found["empty"] == ("train/d.png",)
    assert "images that show each" in capsys.readouterr().out
    assert len(open_data(str(tmp_path), "train", size=(8, 8), targets="semantic")) == 2
    assert len(kinds(looked(tmp_path, ignore=(4, 5, 255)))["annotations"]) == 1


def test_task_and_layout_must_fit(root):
    with pytest.raises(
        InputError, match=r"cannot use data .* to segment: it looks like COCO; use --task detect or keypoints"
    ):
        looked(root, task="segment")
    with pytest.raises(InputError, match="no masks with values of classes"):
        open_data(str(root), "train", size=(8, 8), targets="boxes", ignore=(3,))
    with pytest.raises(InputError, match=r"unknown kind of targets 'boxs'; accepted: labels, .*boxes"):
        open_data(str(root), "train", size=(8, 8), targets="boxs")


@pytest.mark.parametrize(("format", "task"), [("coco", "keypoints"), ("masks", "segment")])
def test_embedded_data_as_files_are_clean(tmp_path, format, task, monkeypatch, capsys):
    shapes(out=tmp_path / "toy", format=format, count=20, val=10, size=48)
    monkeypatch.setattr(sys, "argv", ["vitreous", "check", str(tmp_path / "toy"), "--task", task, "--workers", "0"])
    vitreous_command.main()
    assert "no problems found" in capsys.readouterr().out
