"""A finding of a detector, a segmenter or a keypoint model explained, by the same means as a class.

What is asked is not whether the finding passes a threshold, but the number behind it: for a box the best score times
overlap among all boxes that the detector considers for the class, for a region the mean of its class, for a joint the
value of its heat map at its peak. These change smoothly, and have gradients.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from vitreous.attribution.frame import framed
from vitreous.attribution.target import Target
from vitreous.data.pictures import Pictured
from vitreous.data.transforms import to_unit_tensor
from vitreous.drawing.annotate import enlarge_small
from vitreous.errors import InputError
from vitreous.explanations.explaining import FEWER_PASSES, Plan, chosen_methods, explain_image, look_only
from vitreous.explanations.picture import explanation_facts, picture_name, picture_of_input
from vitreous.reports.explanation import DenseAnswer, Explanation
from vitreous.runs.trained_model import TrainedModel, at_size, predict_samples
from vitreous.tasks.base import Prediction, Task
from vitreous.tasks.findings import FindingChoice, FindingQuery, ModelView

LISTED_FINDINGS = 10
REDUCED_EFFORT = "occlusion in {cells} x {cells} cells, curves in {portions} portions".format_map(FEWER_PASSES)


class Inspection(NamedTuple):
    """What a model says about a picture, and how it sees it."""

    name: str
    task: Task
    prediction: Prediction
    view: ModelView
    drawing: Image.Image

    def choose(self, query: FindingQuery) -> FindingChoice:
        return self.task.choose_finding(self.prediction, self.view, query)


def finding_plan(model: nn.Module, plan: Plan) -> Plan:
    """The plan with fewer passes; an unknown method shows here, before the work."""
    own = replace(plan, light=True)
    chosen_methods(model, own)
    return own


def inspect_picture(trained: TrainedModel, image: Image.Image, name: str) -> Inspection:
    task = trained.build_task()
    blank = task.blank_targets(image, ())[0]
    sample = task.sample(trained.preprocess, image, blank)
    (prediction,) = predict_samples(trained, task, [sample])
    drawing = task.result(image, [prediction], [blank]).draw(caption=False)
    return Inspection(name, task, prediction, view_of(task, image, sample), drawing)


def inspect_input(trained: TrainedModel, given: Pictured) -> Inspection:
    """The same for a normalised input, at its own size."""
    picture = picture_of_input(given, trained.preprocess)
    inspection = inspect_picture(at_size(trained, min(picture.size)), picture, picture_name(given))
    seen = inspection.view.picture
    if seen.tobytes() != picture.tobytes():
        raise InputError(
            f"preprocessed=True given, but this model's view would change an input of {picture.width} x "
            f"{picture.height} pixels to {seen.width} x {seen.height}, or crop it; give "
            "the picture itself, without preprocessed"
        )
    return inspection


def explain_finding(
    trained: TrainedModel,
    inspection: Inspection,
    *,
    query: FindingQuery,
    plan: Plan,
    target: Target | int | str | None = None,
) -> Explanation:
    """One picture. A `target` given in pixels that the model sees takes the place of a finding."""
    if isinstance(target, int | str):
        raise InputError(f"target={target!r} given; a class alone is no finding: give label=..., or a Target")
    view, choice = inspection.view, inspection.choose(query)
    if target is not None:
        choice = FindingChoice(choice.findings, {"rank": None, "name": "the given target"}, target)
    answer = DenseAnswer(
        drawing=inspection.drawing,
        marked=choice.marked or enlarge_small(view.picture)[0],
        findings=tuple(choice.findings[:LISTED_FINDINGS]),
        total=len(choice.findings),
        finding=choice.finding,
        nothing=choice.nothing,
    )
    model, preprocess = explained_model_for(trained, choice.target, view), trained.preprocess
    if choice.target is None or choice.finding is None:
        item = look_only(model, view.picture, preprocess=preprocess, name=inspection.name, watched="nothing", plan=plan)
    else:
        item = explain_image(
            model,
            view.picture,
            preprocess=preprocess,
            classes=trained.classes,
            name=inspection.name,
            target=choice.target.to(next(model.parameters()).device),
            watched=choice.finding["name"],
            plan=plan,
        )
    return replace(
        item, answer=answer, facts=explanation_facts(trained.name, item, plan) | {"kept short": REDUCED_EFFORT}
    )


def view_of(task: Task, image: Image.Image, sample: Any) -> ModelView:
    """A picture as the model sees it, from its sample."""
    pixels, _ = task.collate([sample])
    return ModelView(picture_of_pixels(sample[0]), (pixels.shape[2], pixels.shape[3]), (image.height, image.width))


def picture_of_pixels(pixels: Tensor) -> Image.Image:
    """(3, H, W) bytes."""
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def inputs_of(trained: TrainedModel, picture: Image.Image) -> Tensor:
    """Of a picture as the model sees it, (1, 3, H, W)."""
    return trained.preprocess.normalise(to_unit_tensor(picture).to(trained.device))[None]


def explained_model_for(trained: TrainedModel, target: Target | None, view: ModelView) -> nn.Module:
    """What a target reads from, for the picture without padding."""
    labels = {} if target is None else target.tensors()
    return explained_model(trained, (int(labels["labels"][0]) if "labels" in labels else 0,), view)


def explained_model(trained: TrainedModel, labels: tuple[int, ...], view: ModelView) -> nn.Module:
    """What the targets of findings with these labels read from, for the picture without padding."""
    bare = trained.build_task().explained_model(trained.model, labels, view)
    return framed(bare, view.size, view.padded, trained.preprocess.normalise(torch.zeros(3, 1, 1)).flatten())
