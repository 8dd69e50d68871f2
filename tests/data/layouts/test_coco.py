"""COCO files: everything that is right is read as pycocotools reads it, everything that is wrong is named."""

import json

import numpy as np
import pytest
from pycocotools.coco import COCO

from tests.support.tiny_data import CATEGORIES, annotation, coco, picture
from vitreous.data.image import ImageError
from vitreous.data.joint import DetectView, JointViews, collate_dense
from vitreous.data.layouts.coco import coco_files, open_coco
from vitreous.data.source import describe, open_data
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.shapes import shapes

POSE = {"keypoints": ["nose", "left_eye", "right_eye"], "skeleton": [[1, 2], [1, 3]]}


def test_what_is_read(tmp_path):
    rows = [
        annotation(5, category=90, segmentation=[[4, 5, 14, 5, 14, 13]], area=40.5),
        annotation(2, category=3, iscrowd=1, segmentation={"size": [30, 40], "counts": [600, 600]}),
        annotation(9, image=11, category=7),
    ]
    coco(tmp_path, rows)
    images = open_data(str(tmp_path), "train", size=(8, 8), targets="boxes")
    assert "COCO): 2 train images, 3 classes" in describe(str(tmp_path), "boxes", train=images)
    assert (images.classes, images.category_ids) == (("dog", "cat", "cow"), (3, 7, 90))
    assert [images.name(index) for index in range(2)] == ["train/0.png", "train/1.png"]
    found, target = images[0]
    assert (found.size, target["image_id"]) == ((40, 30), 10)
    objects = target["objects"]
    assert objects.boxes.tolist() == [[4, 5, 14, 13], [4, 5, 14, 13]]
    assert (objects.labels.tolist(), objects.crowd.tolist()) == ([2, 0], [False, True])
    assert (objects.area.tolist(), objects.ids.tolist()) == ([40.5, 80], [5, 2])
    assert images.target(1)["objects"].decoded_masks(30, 40)[0].sum() == 80, "an object without a mask is its box"


def test_an_area_that_is_not_told_is_the_boxs(tmp_path):
    coco(tmp_path, [annotation(1, area=None)])
    assert open_coco(tmp_path, "train").target(0)["objects"].area.tolist() == [80]


def test_lines_between_keypoints_that_are_not_there_are_left_out(tmp_path):
    odd = {**POSE, "skeleton": [[1, 2], [0, 1], [2, 4], [3]]}
    coco(tmp_path, [annotation(1)], categories=[{"id": 7, "name": "cat", **odd}])
    assert open_coco(tmp_path, "train", targets="keypoints").skeleton == ((0, 1),)
    coco(tmp_path, [annotation(1)], categories=[{"id": 7, "name": "cat", "keypoints": 3}])
    with pytest.raises(InputError, match=r"category 'cat' of .* has keypoints that are not a list"):
        open_coco(tmp_path, "train")


def test_masks_are_those_of_pycocotools(tmp_path):
    root = shapes(out=tmp_path / "toy", format="coco", count=3, val=0, size=(40, 56))
    images, reference = open_coco(root, "train"), COCO(str(root / "annotations" / "instances_train.json"))
    for index in range(3):
        objects = images.target(index)["objects"]
        expected = [reference.annToMask(reference.anns[int(number)]) for number in objects.ids]
        assert np.array_equal(objects.decoded_masks(40, 56), np.array(expected, bool))


def test_files_of_shapes_are_the_embedded_ones(tmp_path):
    root = shapes(out=tmp_path / "toy", format="coco", count=3, val=0, size=64)
    for targets in ("boxes", "keypoints"):
        files = open_data(str(root), "train", size=(64, 64), targets=targets)
        drawn = open_data("shapes", "train", size=(64, 64), count=3, targets=targets)
        assert (files.classes, files.category_ids) == (drawn.classes, drawn.category_ids)
        assert (files.keypoint_names, files.keypoint_pairs) == (drawn.keypoint_names, drawn.keypoint_pairs)
    assert drawn.keypoint_names[drawn.keypoint_pairs[0][0]].replace("left", "right") in drawn.keypoint_names
    objects = open_coco(root, "train").target(0)["objects"]
    embedded = open_data("shapes", "train", size=(64, 64), count=3, targets="boxes").target(0)["objects"]
    assert objects.boxes.tolist() == embedded.boxes.tolist()
    assert objects.keypoints == pytest.approx(embedded.keypoints, abs=0.01)  # written with two digits


def test_keypoints_have_a_sample_for_each_object(tmp_path):
    seen = [1, 2, 2, 3, 4, 1, 0, 0, 0]
    rows = [
        annotation(1, keypoints=seen),
        annotation(2, keypoints=[0] * 9),
        annotation(3, keypoints=seen, iscrowd=1),
        annotation(4, image=11, keypoints=seen),
        annotation(5, image=11, keypoints=seen, box=(3, 3, 0, 4)),
    ]
    coco(tmp_path, rows, categories=[{"id": 7, "name": "person", **POSE}])
    images = open_data(str(tmp_path), "train", size=(8, 8), targets="keypoints")
    assert [images.target(index)["objects"].ids.tolist() for index in range(len(images))] == [[1], [4]]
    assert images.keypoint_names == ("nose", "left_eye", "right_eye")
    assert (images.keypoint_pairs, images.skeleton) == (((1, 2),), ((0, 1), (0, 2)))
    assert "2 train objects" in describe(str(tmp_path), "keypoints", train=images)
    coco(tmp_path, [annotation(1)], categories=[{"id": 7, "name": "person", **POSE}])
    with pytest.raises(InputError, match="has keypoints; annotate some"):
        open_data(str(tmp_path), "train", size=(8, 8), targets="keypoints")


def test_boxes_that_cannot_be_learnt_stay_for_metrics(tmp_path):
    bad = [(3, 3, 0, 4), (9, 9, -4, 3), (100, 100, 5, 5)]
    coco(tmp_path, [annotation(1), *(annotation(number + 2, box=box) for number, box in enumerate(bad))])
    images = open_coco(tmp_path, "train")
    objects = images.target(0)["objects"]
    assert objects.usable(30, 40).tolist() == [True, False, False, False]
    views = JointViews(images, DetectView(Preprocess((32, 32)), short=(32,), longest=64))
    _, targets = collate_dense([views[0], views[1]])
    assert [len(boxes) for boxes in targets["boxes"]] == [1, 0], "the second picture shows nothing, and may"


@pytest.mark.parametrize("mask", [[[0, 0, 1e6, 0, 5, 5]], {"size": [30, 40], "counts": [5]}])
def test_masks_that_turn_out_wrong_are_named(tmp_path, mask):
    """As a picture that cannot be used, which training leaves out and counts."""
    coco(tmp_path, [annotation(4, segmentation=mask)])
    views = JointViews(open_coco(tmp_path, "train"), DetectView(Preprocess((32, 32)), short=(32,), longest=64))
    with pytest.raises(ImageError, match=r"image 'train/0\.png' cannot be used: the mask of annotation 4"):
        views[0]


def test_pictures_that_are_missing_or_others_are_named(tmp_path):
    coco(tmp_path, [annotation(1)])
    images = open_coco(tmp_path, "train")
    picture(tmp_path / "images" / "train" / "0.png", size=(30, 40))
    with pytest.raises(ImageError, match=r"0\.png' has 30 x 40 pixels, but its annotations say 40 x 30"):
        images.picture(0)
    (tmp_path / "images" / "train" / "1.png").unlink()
    with pytest.raises(ImageError, match=r"1\.png' does not exist"):
        images.picture(1)
    (tmp_path / "images" / "train" / "0.png").unlink()
    with pytest.raises(InputError, match=r"no picture of .*instances_train2017\.json is there, such as '0\.png'"):
        open_coco(tmp_path, "train")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (annotation(1, image=99), "annotation 1 of .*json is for image 99"),
        (annotation(1, image=[1]), r"annotation 1 of .*json is for image \[1\]"),
        (annotation(1, category=4), "annotation 1 of .* has the category 4"),
        (annotation(1, category=[3]), r"annotation 1 of .* has the category \[3\]"),
        (annotation(1, iscrowd="0"), "annotation 1 of .* has the iscrowd '0'"),
        (annotation(1 << 64), "has the id 18446744073709551616; a whole number"),
        (annotation(8), "annotation 8 of .* has the same id as another"),
        (annotation("x"), "annotation 'x' of .* has the id 'x'"),
        (annotation(1, box=(1, 2, 3)), r"annotation 1 of .* has the box \[1, 2, 3\]"),
        (annotation(1, box=(1, 2, 3, float("nan"))), "annotation 1 of .* has the box"),
        (annotation(1, area="big"), "has the area 'big'"),
        (annotation(1, segmentation=[[1, 2, 3, 4]]), "annotation 1 of .* has a polygon"),
        (annotation(1, segmentation={"size": [9, 9], "counts": [81]}), r"has a mask of \[9, 9\].* is \[30, 40\]"),
        (annotation(1, segmentation={"size": [30, 40]}), "without counts"),
        ([1, 2], "annotation number 2 of .* is not a dictionary"),
    ],
)
def test_wrong_annotations_are_named_or_collected(tmp_path, row, message):
    coco(tmp_path, [annotation(8), row])
    with pytest.raises(InputError, match=message):
        open_coco(tmp_path, "train")
    lenient = open_coco(tmp_path, "train", strict=False)
    assert len(lenient.faults) == 1
    assert len(lenient.target(0)["objects"]) == 1, "the good one is still there"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": []}, "list no images"),
        ({"images": [{"id": 1}]}, "file_name"),
        ({"images": [{"id": 1, "file_name": "0.png"}] * 2}, "two images of .* have the id 1"),
        ({"categories": []}, "list no categories"),
        ({"categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}, "two categories of .* have the id 1"),
        ({"categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]}, "have the name 'a'"),
        ({"annotations": None}, "no list of annotations"),
        ({"annotations": []}, "no object to learn from"),
        ({"annotations": [annotation(1, iscrowd=1), annotation(2, box=(1, 1, 0, 0))]}, "no object to learn from"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, changes, message):
    coco(tmp_path, **{"annotations": [annotation(1)], **changes})
    with pytest.raises(InputError, match=message):
        open_coco(tmp_path, "train")


def test_pictures_without_objects_can_be_evaluated(tmp_path):
    coco(tmp_path, [annotation(1)])
    coco(tmp_path, [], split="val")
    assert len(open_coco(tmp_path, "val").target(0)["objects"]) == 0


def test_splits_need_the_same_categories(tmp_path):
    coco(tmp_path, [annotation(1)])
    coco(tmp_path, [annotation(1)], split="val", categories=CATEGORIES[:2])
    with pytest.raises(InputError, match=r"differ, first in 'cow' \(id 90\)"):
        open_coco(tmp_path, "val")


def test_damaged_file(tmp_path):
    file = coco(tmp_path, [annotation(1)])
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(InputError, match=r"instances_train2017\.json cannot be read"):
        open_coco(tmp_path, "train")


def test_places_of_files(tmp_path):
    file = coco(tmp_path / "a", [annotation(1)])
    assert coco_files(tmp_path / "a") == {"train": file}
    (tmp_path / "b" / "train").mkdir(parents=True)
    moved = tmp_path / "b" / "train" / "_annotations.coco.json"
    moved.write_text(json.dumps(json.loads(file.read_text())))
    for number in range(2):
        picture(tmp_path / "b" / "train" / f"{number}.png")
    assert open_coco(tmp_path / "b", "train").picture(0).size == (40, 30)
    both = tmp_path / "a" / "annotations" / "instances_train2014.json"
    both.write_text(file.read_text())
    with pytest.raises(InputError, match=r"split 'train' could be .*2014.* and .*2017"):
        open_coco(tmp_path / "a", "train")


def test_people_have_files_of_their_own(tmp_path):
    file = coco(tmp_path, [annotation(1)])
    people = file.with_name("person_keypoints_train2017.json")
    people.write_text(file.read_text())
    assert coco_files(tmp_path, "keypoints") == {"train": people}
    assert coco_files(tmp_path, "boxes") == {"train": file}


def test_fingerprint_follows_the_annotations(tmp_path):
    coco(tmp_path, [annotation(1)])
    before = open_coco(tmp_path, "train").fingerprint
    assert open_coco(tmp_path, "train").fingerprint == before
    coco(tmp_path, [annotation(1, box=(4, 5, 10, 9))])
    assert open_coco(tmp_path, "train").fingerprint != before
