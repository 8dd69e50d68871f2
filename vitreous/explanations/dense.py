"""A finding of a detector, a segmenter or a keypoint model explained, by the same means as a class.

What is asked is not whether the finding passes a threshold, but the number behind it: for a box the best score times
overlap among all boxes that the detector considers for the class, for a region the mean of its class, for a joint the
value of its heat map at its peak. These change smoothly, and have gradients.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.ops import box_iou

from vitreous.attribution.frame import framed
from vitreous.attribution.target import BoxTarget, Target, dense_logits
from vitreous.data.pictures import Pictured
from vitreous.data.transforms import to_unit_tensor
from vitreous.drawing.annotate import enlarged
from vitreous.errors import InputError
from vitreous.explanations.answers import answers, drawn
from vitreous.explanations.explaining import FEWER_PASSES, Plan, chosen_methods, explain_image, look_only
from vitreous.explanations.findings import SURE, Choice, Seen, Wanted, choose_finding
from vitreous.explanations.picture import explanation_facts, picture_name, picture_of_input
from vitreous.explanations.truth import SAME
from vitreous.heads.boxes import Detector, suppress_overlaps
from vitreous.reports.explanation import DenseAnswer, Explanation
from vitreous.runs.model_folder import TrainedModel, at_size
from vitreous.tasks.base import Prediction, WithHead
from vitreous.tasks.keypoints import Keypoints
from vitreous.tasks.segment import Segment, labels_of

LISTED = 10  # findings that are told
LIMITS = "occlusion in {cells} x {cells} cells, curves in {portions} portions".format_map(FEWER_PASSES)


class OfClasses(nn.Module):
    """A detector that gives every box it considers for some classes, for pictures of one size."""

    def __init__(self, detector: Detector, classes: tuple[int, ...], size: tuple[int, int]) -> None:
        super().__init__()
        self.detector, self.classes, self.size = detector, classes, size
        self.eval()

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        return self.detector.all_of(images, self.classes, sizes=torch.tensor([self.size] * len(images)))


class Looked(NamedTuple):
    """What a model says about a picture."""

    name: str
    task: WithHead
    prediction: Prediction
    seen: Seen
    drawing: Image.Image

    def choose(self, wanted: Wanted) -> Choice:
        return choose_finding(self.task, self.prediction, self.seen, wanted)


def dense_plan(model: nn.Module, plan: Plan) -> Plan:
    """The plan with fewer passes; an unknown method shows here, before the work."""
    own = replace(plan, light=True)
    chosen_methods(model, own)
    return own


def look(trained: TrainedModel, image: Image.Image, name: str) -> Looked:
    task = dense_task(trained)
    view = task.evaluation_view(trained.preprocess)(image, task.questions(image, [])[0])
    (prediction,) = answers(trained, task, [view])
    drawing = drawn(task, image, [prediction], SURE)
    return Looked(name, task, prediction, see(trained, task, image, view), drawing)


def look_at_input(trained: TrainedModel, given: Pictured) -> Looked:
    """The same for a normalised input, at its own size."""
    picture = picture_of_input(given, trained.preprocess)
    looked = look(at_size(trained, min(picture.size)), picture, picture_name(given))
    if looked.seen.picture.tobytes() != picture.tobytes():
        raise InputError(
            f"preprocessed=True given, but this model's view would change an input of {picture.width} x "
            f"{picture.height} pixels to {looked.seen.picture.width} x {looked.seen.picture.height}, or crop it; give "
            "the picture itself, without preprocessed"
        )
    return looked


def dense_task(trained: TrainedModel) -> WithHead:
    task = trained.build_task()
    assert isinstance(task, WithHead)  # every task but classification has a head over a pyramid
    return task


def explain_dense(
    trained: TrainedModel, looked: Looked, *, wanted: Wanted, plan: Plan, target: Target | int | str | None = None
) -> Explanation:
    """One picture. A `target` given in pixels that the model sees takes the place of a finding."""
    if isinstance(target, int | str):
        raise InputError(f"target={target!r} given; a class alone is no finding: give label=..., or a Target")
    seen, choice = looked.seen, looked.choose(wanted)
    if target is not None:
        choice = Choice(choice.findings, {"rank": None, "name": "the given target"}, target)
    answer = DenseAnswer(
        drawing=looked.drawing,
        marked=choice.marked or enlarged(seen.picture)[0],
        findings=tuple(choice.findings[:LISTED]),
        total=len(choice.findings),
        finding=choice.finding,
        nothing=choice.nothing,
    )
    model, preprocess = model_behind(trained, choice.target, seen), trained.preprocess
    if choice.target is None or choice.finding is None:
        item = look_only(model, seen.picture, preprocess=preprocess, name=looked.name, watched="nothing", plan=plan)
    else:
        item = explain_image(
            model,
            seen.picture,
            preprocess=preprocess,
            classes=trained.classes,
            name=looked.name,
            target=choice.target.to(next(model.parameters()).device),
            watched=choice.finding["name"],
            plan=plan,
        )
    return replace(item, answer=answer, facts=explanation_facts(trained.name, item, plan) | {"kept short": LIMITS})


def numbers_now(
    looked: Looked, model: nn.Module, found: Sequence[tuple[dict[str, Any], Target]], output: Any
) -> list[float]:
    """What findings would be told with if the model said this: `number_of` of each, and 0 for a box that is gone.

    `output` is that of `explained_model` for one picture.
    """
    task, seen = looked.task, looked.seen
    if isinstance(task, Segment):
        semantic = labels_of(dense_logits(output)[0], seen.filled, seen.size, seen.original)
        return [(semantic == task.classes.index(finding["class"])).double().mean().item() for finding, _ in found]
    if isinstance(task, Keypoints):
        return [target.on("logit")(output).item() for _, target in found]
    assert isinstance(model, Detector)
    (boxes,) = output
    sure = boxes["scores"] > model.selection.score
    answers = suppress_overlaps(boxes["boxes"][sure], boxes["labels"][sure], boxes["scores"][sure], model.selection)
    return matched_scores([target for _, target in found], answers)


def matched_scores(targets: Sequence[Target], answers: dict[str, Tensor]) -> list[float]:
    """For each box, the surest first, the score of the answer most like it that stands for no other; 0 without one.

    An object that is found elsewhere is another one.
    """
    free, scores = torch.ones(len(answers["labels"]), dtype=torch.bool), []
    for target in targets:
        assert isinstance(target, BoxTarget)
        overlap = box_iou(target.boxes.to(answers["boxes"]), answers["boxes"])[0].cpu()
        fits = free & (answers["labels"] == target.labels[0]).cpu() & (overlap >= SAME)
        if not fits.any():
            scores.append(0.0)
            continue
        # Rounded, as a detector without suppression may give one box many times: then the surest is taken.
        best = int(torch.where(fits, overlap, -1.0).mul(1000).round().argmax())
        free[best] = False
        scores.append(answers["scores"][best].item())
    return scores


def see(trained: TrainedModel, task: WithHead, image: Image.Image, view: Any) -> Seen:
    """A picture through its view."""
    pixels, targets = task.collate([view])
    picture, filled = as_picture(view[0]), (pixels.shape[2], pixels.shape[3])
    original = (image.height, image.width)
    if "sizes" in targets:
        return Seen(picture, filled, original)
    device = next(trained.model.parameters()).device
    with torch.inference_mode():
        heatmaps = trained.model(trained.preprocess.normalise_bytes(pixels.to(device)))
    return Seen(picture, filled, original, heatmaps.cpu())


def as_picture(pixels: Tensor) -> Image.Image:
    """(3, H, W) bytes."""
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def inputs_of(trained: TrainedModel, picture: Image.Image) -> Tensor:
    """Of a picture as the model sees it, (1, 3, H, W)."""
    device = next(trained.model.parameters()).device
    return trained.preprocess.normalise(to_unit_tensor(picture).to(device))[None]


def model_behind(trained: TrainedModel, target: Target | None, seen: Seen) -> nn.Module:
    """What a target reads from."""
    labels = (int(target.labels[0]),) if isinstance(target, BoxTarget) else (0,)
    return explained_model(trained, labels, seen)


def explained_model(trained: TrainedModel, classes: tuple[int, ...], seen: Seen) -> nn.Module:
    """What targets read from, for the bare picture; of a detector the boxes it considers for these classes."""
    model = trained.model
    bare = OfClasses(model, classes, seen.size) if isinstance(model, Detector) else model
    return framed(bare, seen.size, seen.filled, trained.preprocess.normalise(torch.zeros(3, 1, 1)).flatten())
