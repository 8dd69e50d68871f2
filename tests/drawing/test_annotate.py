"""Drawings of answers: colours tell classes apart, nothing leaves the picture, nothing found leaves it as it is."""

import numpy as np
from PIL import Image

from vitreous.drawing.annotate import (
    MIN_DRAWING_PIXELS,
    class_colour,
    draw_classes,
    draw_keypoints,
    draw_objects,
    enlarge_small,
    with_legend,
)

GREY = Image.new("RGB", (80, 60), (128, 128, 128))


def test_colours_of_a_hundred_classes_differ():
    assert len({class_colour(number) for number in range(100)}) == 100
    first = np.array([class_colour(number) for number in range(8)], float)
    distances = np.linalg.norm(first[:, None] - first, axis=2) + 1000 * np.eye(8)
    assert distances.min() > 40  # of 255: neighbours in a list are easily told apart


def test_nothing_found_changes_nothing():
    empty = draw_objects(GREY, np.zeros((0, 4)), [], [], masks=np.zeros((0, 60, 80), bool))
    assert np.array_equal(np.asarray(empty), np.asarray(GREY))
    points = np.array([[[10.0, 10.0, 0.1], [30.0, 30.0, 0.2]]])
    assert np.array_equal(np.asarray(draw_keypoints(GREY, points, [(0, 1)], min_score=0.5)), np.asarray(GREY))


def test_boxes_beyond_the_picture_and_inverted_ones_are_drawn_without_complaint():
    boxes = np.array([[-20.0, -20.0, 200.0, 200.0], [70.0, 50.0, 10.0, 10.0], [79.9, 59.9, 79.95, 59.95]])
    drawn = draw_objects(GREY, boxes, [0, 1, 2], ["a name that is much too long for a picture this small"] * 3)
    assert drawn.size == GREY.size
    assert np.array_equal(np.asarray(GREY)[0, 0], (128, 128, 128))  # the picture given is untouched


def test_masks_tint_what_they_cover_and_the_first_wins():
    masks = np.zeros((2, 60, 80), bool)
    masks[0, :, :40], masks[1, :, 20:60] = True, True
    pixels = np.asarray(draw_objects(GREY, np.zeros((2, 4)) + 70.0, [0, 3], ["", ""], masks=masks)).astype(int)
    assert np.array_equal(pixels[5, 10], pixels[5, 30])
    assert not np.array_equal(pixels[5, 30], pixels[5, 50])
    assert np.array_equal(pixels[5, 65], (128, 128, 128))


def test_the_legend_names_what_is_there():
    semantic = np.zeros((60, 80), np.uint8)
    semantic[:30] = 2
    names = ("ground", "tree", "sky")
    tinted = draw_classes(GREY, semantic, names)
    assert not np.array_equal(np.asarray(tinted)[0, 0], np.asarray(tinted)[59, 0])
    assert with_legend(tinted, semantic, names).height > 60


def test_the_background_is_not_tinted():
    semantic = np.zeros((60, 80), int)
    semantic[:30] = 1
    tinted = np.asarray(draw_classes(GREY, semantic, ("background", "tree")))
    assert (tinted[30:] == 128).all()
    assert not (tinted[:30] == 128).all(-1).any()


def test_small_pictures_are_enlarged_by_a_whole_number():
    large, times = enlarge_small(GREY)
    assert (times, large.size) == (MIN_DRAWING_PIXELS // 80, (320, 240))
    assert enlarge_small(Image.new("RGB", (400, 900)))[1] == 1
