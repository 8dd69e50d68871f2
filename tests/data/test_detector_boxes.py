"""Boxes of a detector in both forms, and every mistake in a file as one line."""

import json
from pathlib import Path

import pytest

from vitreous.data.detector_boxes import Found, read_boxes
from vitreous.errors import InputError

CATEGORIES, CLASSES = {1: "person", 18: "dog"}, ("dog", "person")
ROW = {"image_id": 7, "category_id": 1, "bbox": [5, 6, 20, 30], "score": 0.5}


def written(tmp_path: Path, content: object) -> Path:
    (tmp_path / "boxes.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return tmp_path / "boxes.json"


def test_both_forms_say_the_same(tmp_path):
    expected = [Found((5, 6, 25, 36), 1, 0.5), Found((5, 6, 25, 36), 0, 0.5)]
    rows = [ROW, {**ROW, "category_id": 18}, {**ROW, "category_id": 3}, {**ROW, "bbox": [5, 6, 0, 30]}]
    assert read_boxes(written(tmp_path, rows), CATEGORIES, CLASSES).numbered == {7: expected}
    names = ["person", "dog", "cat"]
    images = [{"image": "a.png", "predictions": [{**ROW, "class": name} for name in names]}]
    assert read_boxes(written(tmp_path, {"images": images}), CATEGORIES, CLASSES).named == {"a.png": expected}
    assert read_boxes(str(tmp_path / "boxes.json"), CATEGORIES, CLASSES, least=0.6).named == {"a.png": []}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[", "Expecting value"),
        ("[" * 100_000, "nested too deeply"),
        ("3", "TypeError"),
        ({"annotations": []}, "KeyError: 'images'"),
        ([3], "TypeError"),
        ([{**ROW, "bbox": [1, 2, 3]}], "not enough values"),
        ([{**ROW, "bbox": [1, 2, 3, "wide"]}], "could not convert"),
        ([{**ROW, "bbox": [0, 0, 1e300, 1]}], "the box .*; x, y, width and height in pixels are needed"),
        ([{**ROW, "bbox": [0, 0, 10**400, 1]}], "OverflowError"),
        ([{**ROW, "bbox": [float("nan"), 0, 1, 1]}], "the box"),
        ([{**ROW, "score": float("inf")}], "the score inf; a number is needed"),
        ([{**ROW, "score": None}], "TypeError"),
        ([{**ROW, "image_id": "7"}], "'7' in place of a whole number"),
        ([{**ROW, "category_id": True}], "True in place of a whole number"),
        ([{"image_id": 7}], "KeyError: 'category_id'"),
        ({"images": [{"image": "a.png", "predictions": 3}]}, "TypeError"),
        ({"images": [{"image": "a.png", "predictions": [ROW]}]}, "KeyError: 'class'"),
    ],
)
def test_mistakes_in_a_file_are_one_line(tmp_path, content, reason):
    file = written(tmp_path, content)
    with pytest.raises(InputError, match=rf"--boxes .*boxes\.json cannot be read: .*{reason}") as caught:
        read_boxes(file, CATEGORIES, CLASSES)
    assert "\n" not in str(caught.value)
    assert "give predictions.json of a detector, or a list of COCO's results" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_boxes(tmp_path / "none.json", CATEGORIES, CLASSES)


@pytest.mark.parametrize("content", [[], {"images": []}])
def test_a_file_without_a_picture(tmp_path, content):
    with pytest.raises(InputError, match=r"--boxes .*boxes\.json is empty: it names no picture; give predictions"):
        read_boxes(written(tmp_path, content), CATEGORIES, CLASSES)
