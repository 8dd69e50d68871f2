"""Keypoints of objects that a detector found: their score is the product of both."""

import pytest
import torch
from PIL import Image

from vitreous.data.detector_boxes import Found
from vitreous.data.transforms import Preprocess
from vitreous.tasks.keypoints import KeypointsTask


def test_scores_are_multiplied_with_those_of_the_detector():
    task = KeypointsTask(("person",), crop=(64, 48), names=("nose", "tail"))
    picture = Image.new("RGB", (100, 80))
    boxes = [Found((10, 10, 40, 50), 0, score) for score in (1.0, 0.5, 0.125)]
    view = task.evaluation_view(Preprocess((64, 64)))
    pixels, targets = task.collate([view(picture, question) for question in task.blank_targets(picture, boxes)])
    heatmaps = torch.rand(1, 2, 16, 12, generator=torch.Generator().manual_seed(0)).expand(3, -1, -1, -1)
    sure, half, eighth = task.predict(lambda images: heatmaps, pixels, targets)
    assert float(sure["scores"]) == pytest.approx(float(sure["keypoints"][:, 2].mean()))
    assert float(half["scores"]) == float(sure["scores"]) / 2
    assert float(eighth["scores"]) == float(sure["scores"]) / 8
    assert torch.equal(half["keypoints"], sure["keypoints"])
