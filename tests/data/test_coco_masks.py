"""Masks are those of pycocotools, pixel for pixel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as reference

from vitreous.data.coco_masks import counts_of, decode_mask, encode, encode_pixels, run_length_counts, text_of

SIDES = st.integers(1, 40)


@st.composite
def outlines(draw):
    """A picture's size and a polygon in it, partly outside and with corners on, or between, the pixels."""
    height, width = draw(SIDES), draw(SIDES)
    coordinate = st.one_of(st.integers(-10, 50), st.floats(-10, 50, width=32))
    corners = draw(st.lists(st.tuples(coordinate, coordinate), min_size=3, max_size=9))
    return height, width, [float(value) for corner in corners for value in corner]


@settings(max_examples=300, deadline=None)
@given(outlines())
def test_polygons_are_filled_as_by_pycocotools(drawn):
    height, width, polygon = drawn
    expected = reference.decode(reference.merge(reference.frPyObjects([polygon], height, width)))
    assert np.array_equal(decode_mask([polygon], height, width), expected.astype(bool))


@settings(max_examples=100, deadline=None)
@given(SIDES, SIDES, st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_masks_survive_every_code(height, width, seed, share):
    mask = np.random.default_rng(seed).random((height, width)) < share
    coded = encode(mask)
    assert coded["counts"] == reference.encode(np.asfortranarray(mask, np.uint8))["counts"].decode()
    assert np.array_equal(decode_mask(coded, height, width), mask)
    assert encode_pixels(np.flatnonzero(mask.flatten(order="F")), mask.shape) == coded
    assert np.array_equal(
        decode_mask({"size": [height, width], "counts": run_length_counts(mask)}, height, width), mask
    )


@given(st.lists(st.integers(0, 2**31)))
def test_text_and_counts_are_each_others_inverse(counts):
    assert counts_of(text_of(counts)) == counts


def test_several_polygons_make_one_mask():
    left, right = [0, 0, 2, 0, 2, 4, 0, 4], [3, 0, 5, 0, 5, 4, 3, 4]
    assert np.array_equal(decode_mask([left, right], 4, 6), decode_mask([left], 4, 6) | decode_mask([right], 4, 6))


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        ({"size": [4, 5], "counts": [20]}, r"picture of \[4, 5\] .*, not of \[4, 4\]"),
        ({"size": [4, 4], "counts": [3, 4]}, "cover 7 pixels, the picture has 16"),
        ({"size": [4, 4], "counts": [-4, 20]}, "cover 16 pixels"),
        ({"size": [4, 4]}, "both 'size' and 'counts'"),
        ({"size": [4, 4], "counts": "a!"}, "'!', which the code does not know"),
        ({"size": [4, 4], "counts": "P"}, "middle of a number"),
        ([[0, 0, 1, 1]], "4 numbers"),
        ([[0, 0, 1, 1, float("nan"), 2]], "three corners or more"),
        ([[0, 0, 1e9, 1, 2, 2]], "three corners or more"),
    ],
)
def test_what_is_wrong_is_said(segmentation, message):
    with pytest.raises(ValueError, match=message):
        decode_mask(segmentation, 4, 4)
