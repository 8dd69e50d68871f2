"""What a detector, a segmenter or a keypoint model says about pictures, and a drawing of it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous.data.loader import moved_to
from vitreous.drawing.annotate import draw_classes, draw_keypoints, draw_objects, enlarged
from vitreous.runs.model_folder import TrainedModel
from vitreous.runs.results import require_numbers
from vitreous.tasks.base import Prediction, WithHead
from vitreous.tasks.keypoints import Keypoints
from vitreous.tasks.segment import Segment


def ask(
    trained: TrainedModel, task: WithHead, samples: Sequence[tuple[Image.Image, dict[str, Any]]]
) -> list[Prediction]:
    """One prediction for each pair of a picture and a question about it."""
    view = task.evaluation_view(trained.preprocess)
    return answers(trained, task, [view(picture, question) for picture, question in samples])


@torch.inference_mode()
def answers(trained: TrainedModel, task: WithHead, views: list[Any]) -> list[Prediction]:
    """The same for pictures as the model sees them."""
    device = next(trained.model.parameters()).device
    pixels, targets = task.collate(views)
    moved = {key: moved_to(value, device) for key, value in targets.items()}
    predictions = task.predict(trained.model, trained.preprocess.normalise_bytes(pixels.to(device)), moved)
    for prediction in predictions:
        for value in prediction.values():
            if value.is_floating_point():  # masks and labels always are numbers, and very many
                require_numbers(trained.name, value)
    return predictions


def drawn(task: WithHead, picture: Image.Image, found: Sequence[Prediction], least: float) -> Image.Image:
    """The picture, enlarged if it is small, with what was found in it."""
    picture, times = enlarged(picture)
    if isinstance(task, Segment):
        semantic = found[0]["semantic"].numpy().repeat(times, 0).repeat(times, 1)
        return draw_classes(picture, semantic, task.classes)
    if isinstance(task, Keypoints):
        points = np.stack([one["keypoints"].double().numpy() for one in found]) * (times, times, 1)
        return draw_keypoints(picture, points, task.skeleton, least=least)
    (answer,) = found
    shown = answer["scores"] >= least
    labels, scores = answer["labels"][shown].tolist(), answer["scores"][shown].tolist()
    captions = [f"{task.classes[label]} {score:.0%}" for label, score in zip(labels, scores, strict=True)]
    masks = answer["masks"][shown].numpy().repeat(times, 1).repeat(times, 2) if "masks" in answer else None
    return draw_objects(picture, answer["boxes"][shown].double().numpy() * times, labels, captions, masks=masks)
