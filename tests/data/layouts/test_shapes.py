"""The embedded scenes offer every kind of targets, with the same pictures for all of them."""

import numpy as np
import pytest

from vitreous.data.shapes.samples import CATEGORIES, KEYPOINTS, Shapes
from vitreous.data.source import open_data

SCENES = Shapes("val", count=12, size=(48, 64))


def opened(targets):
    return open_data("shapes", "val", size=(48, 64), count=12, targets=targets)


@pytest.mark.parametrize("targets", ["labels", "boxes", "semantic", "keypoints"])
def test_all_kinds_of_targets_come_with_the_same_pictures(targets):
    images = opened(targets)
    assert images.fingerprint == opened("labels").fingerprint
    assert images.classes == (("background", *CATEGORIES) if targets == "semantic" else CATEGORIES)
    for index in (7, 2):
        target, picture = images.target(index), images.picture(index)
        assert np.array_equal(picture, SCENES[index].image)
        assert target.keys() == images[index][1].keys()


def test_objects():
    ids: list[int] = []
    for index in range(12):
        scene, target = SCENES[index], opened("boxes").target(index)
        objects = target["objects"]
        assert target["image_id"] == index + 1
        assert np.array_equal(objects.boxes, scene.boxes)
        assert np.array_equal(objects.decoded_masks(48, 64), scene.masks)
        assert objects.area.tolist() == scene.masks.sum((1, 2)).tolist()
        assert np.array_equal(objects.keypoints, scene.keypoints)
        ids += objects.ids.tolist()
    assert len(set(ids)) == len(ids)


def test_semantic():
    assert all(
        np.array_equal(opened("semantic").target(index)["semantic"], SCENES[index].semantic) for index in range(3)
    )


def test_keypoints_are_those_of_the_largest_object():
    images = opened("keypoints")
    for index in range(12):
        objects, scene = images.target(index)["objects"], SCENES[index]
        assert len(objects) == 1
        assert objects.labels[0] == scene.label
        assert objects.area[0] == scene.masks.sum((1, 2))[scene.labels == scene.label].max()
    names = [{KEYPOINTS[left], KEYPOINTS[right]} for left, right in images.keypoint_pairs]
    assert sorted(map(sorted, names)) == [["bottom_left", "bottom_right"], ["left", "right"], ["top_left", "top_right"]]
