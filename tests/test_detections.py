import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from pycocotools import mask as coder

from vitreous.detections import Detections
from vitreous.errors import InputError

MASKS = torch.zeros(3, 8, 10, dtype=torch.bool)
MASKS[0, 2:5, 1:4] = MASKS[2, :, 5:] = True
PREDICTION = {
    "boxes": torch.tensor([[1.0, 2.0, 4.0, 5.0], [0.0, 0.0, 9.0, 7.0], [5.0, 0.0, 10.0, 8.0]]),
    "labels": torch.tensor([1, 0, 1]),
    "scores": torch.tensor([0.75, 0.5, 0.25]),
    "masks": MASKS,
}
CLASSES = ("cat", "dog")


def test_some_of_them() -> None:
    found = Detections.of(PREDICTION, CLASSES)
    sure = found[found.scores > 0.3]
    assert (len(found), len(sure), sure.names) == (3, 2, ["dog", "cat"])
    assert sure.masks is not None
    assert sure.masks.shape == (2, 8, 10)
    assert len(found[:0]) == 0
    assert Detections.of({k: v for k, v in PREDICTION.items() if k != "masks"}, CLASSES)[1:].masks is None


def test_coco_rows_hold_the_same_boxes_and_masks() -> None:
    rows = Detections.of(PREDICTION, CLASSES).to_coco(7, (3, 18))
    assert rows[0] | {"segmentation": None} == {
        "image_id": 7,
        "category_id": 18,
        "bbox": [1.0, 2.0, 3.0, 3.0],
        "score": 0.75,
        "segmentation": None,
    }
    for row, mask in zip(rows, MASKS, strict=True):
        assert np.array_equal(coder.decode(row["segmentation"]), mask.numpy())
    assert [row["category_id"] for row in Detections.of(PREDICTION, CLASSES).to_coco(7)] == [2, 1, 2]


def test_supervision_is_handed_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with supervision's argument names: the package itself is not among our requirements."""

    @dataclass
    class Handed:
        xyxy: np.ndarray
        mask: np.ndarray | None
        confidence: np.ndarray
        class_id: np.ndarray
        data: dict[str, Any]

    library = ModuleType("supervision")
    library.Detections = Handed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "supervision", library)
    handed = Detections.of(PREDICTION, CLASSES).to_supervision()
    assert np.array_equal(handed.xyxy, PREDICTION["boxes"].numpy())
    assert np.array_equal(handed.mask, MASKS.numpy())
    assert handed.confidence.tolist() == [0.75, 0.5, 0.25]
    assert handed.class_id.tolist() == [1, 0, 1]
    assert handed.data["class_name"].tolist() == ["dog", "cat", "dog"]


def test_without_supervision_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(InputError, match="pip install supervision"):
        Detections.of(PREDICTION, CLASSES).to_supervision()
