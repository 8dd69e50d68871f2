"""Pictures explained with a trained model, whose classes and preprocessing are known."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitreous.attribution.target import Target
from vitreous.clusters.layer import mean_correlation
from vitreous.data.pictures import Picture, Pictured, as_picture
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.explanations.explaining import Plan, explain_image
from vitreous.reports.explanation import Explanation
from vitreous.runs.any_model import adapted, read_preprocess
from vitreous.runs.model_folder import data_of
from vitreous.runs.trained_model import TrainedModel

COLOUR_SLACK = 0.01  # by which colours of a network input may miss 0 and 1, as scaling overshoots a little


def explain_picture(
    trained: TrainedModel, source: Picture, image: Image.Image, plan: Plan, label: str | None = None
) -> Explanation:
    """One picture; its true class is `label`, or what its name says if that is a class of the model."""
    item = explain_image(
        trained.model,
        trained.preprocess.picture(image),
        preprocess=trained.preprocess,
        classes=trained.classes,
        name=source.name,
        true=label or (source.label if source.label in trained.classes else None),
        plan=plan,
    )
    return replace(item, facts=explanation_facts(trained.name, item, plan))


def explain_with(
    trained: TrainedModel,
    image: Pictured,
    *,
    target: Target | int | None = None,
    plan: Plan,
    preprocessed: bool = False,
) -> Explanation:
    """A picture, by the rule of `data.pictures`; or, `preprocessed`, what the network is fed with."""
    preprocess = trained.preprocess
    if preprocessed:
        seen = picture_of_input(image, preprocess)
        preprocess = replace(preprocess, size=(seen.height, seen.width))
    else:
        seen = preprocess.picture(as_picture(image))
    item = explain_image(
        trained.model,
        seen,
        preprocess=preprocess,
        classes=trained.classes,
        name=picture_name(image),
        target=target,
        plan=plan,
    )
    return replace(item, facts=explanation_facts(trained.name, item, plan))


def picture_name(image: Pictured) -> str:
    return os.fspath(image) if isinstance(image, str | os.PathLike) else "image"


def picture_of_input(given: Pictured, preprocess: Preprocess) -> Image.Image:
    """The picture behind a normalised input (3, H, W), to the next byte."""
    values = torch.as_tensor(given) if isinstance(given, Tensor | np.ndarray) else None
    if values is None or not values.is_floating_point():
        kind = type(given).__name__ if values is None else f"{type(given).__name__} of {values.dtype}"
        raise InputError(
            f"preprocessed=True with a {kind} given; a network input is a float tensor: leave preprocessed out"
        )
    single = values[0] if values.ndim == 4 and len(values) == 1 else values
    if single.ndim != 3 or len(single) != 3:
        raise InputError(
            f"a network input of shape {tuple(values.shape)} was given; one of (3, height, width) is needed"
        )
    pixels = preprocess.denormalise(single.detach().float().cpu())
    low, high = pixels.min().item(), pixels.max().item()
    if not (low >= -COLOUR_SLACK and high <= 1 + COLOUR_SLACK):  # NaN is refused too
        raise InputError(
            f"preprocessed=True given, but values from {single.min().item():.3g} to {single.max().item():.3g} are "
            f"colours from {low:.3g} to {high:.3g} by this model's mean {preprocess.mean} and std {preprocess.std}, "
            "and not from 0 to 1; normalise with these, or leave preprocessed out"
        )
    return Image.fromarray((pixels.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy())


def model_in_memory(model: nn.Module, preprocess: Any = None, classes: Sequence[str] | None = None) -> TrainedModel:
    """A model in memory with what is said about its pictures and classes, and for the rest what it tells itself."""
    model = getattr(model, "_orig_mod", model)  # of torch.compile, whose graph knows no hooks
    if not hasattr(model, "pretrained_cfg"):
        return adapted(model, preprocess, classes)
    told = data_of(model, type(model).__name__)
    read = told.preprocess if preprocess is None else read_preprocess(preprocess)
    return told._replace(preprocess=read, classes=told.classes if classes is None else tuple(classes))


def explanation_facts(name: str, item: Explanation, plan: Plan) -> dict[str, str]:
    """What the reader must know to repeat it, and to judge it."""
    facts = {"model": name, "picture": f"{item.picture.width} x {item.picture.height} pixels"}
    clusters = item.clusters
    if clusters is None:
        return facts
    count, rows, columns = clusters.maps.shape
    layer = clusters.layer
    kind = "cluster" if layer.source == "clusters" else "attention"
    heads = "" if layer.source == "clusters" else f", {'mean of heads' if plan.head is None else f'head {plan.head}'}"
    facts |= {
        "layer": f"{layer.name} ({layer.tap})",
        "maps": f"{count} {kind} maps of {columns} x {rows}{heads}",
        "clusters ranked by": clusters.ranking.replace("_", " "),
        "entropy of a flat map": f"{math.log(rows * columns):.2f} nats",
        "likeness of the maps": f"{mean_correlation(clusters.maps):.2f}",
    }
    if clusters.ranking == "masking":
        hidden_with = "a blur" if clusters.hole == "blurred" else clusters.hole
        facts["hidden with"] = f"{hidden_with}, {plan.masking.interpolation}"
    return facts
