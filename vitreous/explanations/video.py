"""Where a classifier looks in every frame of a video: the frame beside its map, and a line for each.

One map is drawn, of the method that `vitreous score` found best for the run, or else of a quick one. How faithful it is
was measured there, over a data set; a single frame is not put to that test.
"""

from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vitreous.attribution.catalogue import controls_for
from vitreous.attribution.method import Method
from vitreous.attribution.target import ClassTarget
from vitreous.data.transforms import to_unit_tensor
from vitreous.data.video import Video, VideoFile
from vitreous.drawing.panels import labelled, overlay
from vitreous.errors import InputError
from vitreous.explanations.explaining import Plan, chosen_methods, likeliest
from vitreous.reports.explanation_page import shown_heat
from vitreous.runs.trained_model import TrainedModel, is_classifier
from vitreous.runs.video_answers import VIDEO_DRAWN, write_lines
from vitreous.runtime.console import track

VIDEO_WIDTH = 448  # pixels of a frame, and of its map beside it
FRAME_LINES = "frames.jsonl"


def require_watchable(trained: TrainedModel) -> None:
    if not is_classifier(trained):
        raise InputError(
            f"videos are explained for classifiers, and this model was trained for the task {trained.task}; predict "
            "draws what it finds, and explain takes single frames of it as pictures"
        )


def method_for_video(trained: TrainedModel, plan: Plan) -> Method:
    """The first that is no control: the run's default, or else a quick one."""
    controls = {control.name for control in controls_for(trained.model)}
    return next(method for method in chosen_methods(trained.model, plan) if method.name not in controls)


def explain_frames(
    trained: TrainedModel, method: Method, video: Video, folder: Path
) -> list[tuple[dict[str, Any], str]]:
    """For each frame its line and a summary; the lines and the video go to the folder."""
    found = []
    with VideoFile(folder / VIDEO_DRAWN, video.rate) as drawn:
        for frame in track(video.frames(), total=video.expected, label="explain", unit="frames"):
            seen = trained.preprocess.picture(frame.picture.convert("RGB"))
            row, heat = explained_frame(trained, method, seen)
            best = f"{row['class']} {row['probability']:.0%}"
            drawn.add(beside(labelled(seen, best, width=VIDEO_WIDTH), overlay(seen, heat, width=VIDEO_WIDTH)))
            found.append(({"frame": frame.number, "seconds": round(frame.seconds, 4), **row}, best))
    write_lines(folder / FRAME_LINES, [row for row, _ in found])
    return found


def explained_frame(trained: TrainedModel, method: Method, seen: Image.Image) -> tuple[dict[str, Any], Any]:
    """What is said about a frame, and the map as it is drawn."""
    device = next(trained.model.parameters()).device
    images = trained.preprocess.normalise(to_unit_tensor(seen).to(device))[None]
    with torch.no_grad():
        output = trained.model(images)
    heat = method(trained.model, images, ClassTarget(labels=output.argmax(1)))[0].cpu()
    ranked = likeliest(output, trained.classes)
    name, probability = ranked[0]
    row = {"class": name, "probability": round(probability, 6), "method": method.name}
    return row | {"predictions": [{"class": one, "probability": round(p, 6)} for one, p in ranked]}, shown_heat(heat)


def beside(left: Image.Image, right: Image.Image) -> Image.Image:
    both = Image.new("RGB", (left.width + right.width, max(left.height, right.height)), "white")
    both.paste(left, (0, 0))
    both.paste(right, (left.width, 0))
    return both
