"""Pictures explained with a trained model, whose classes and preprocessing are known."""

import math
from dataclasses import replace

import torch
from PIL import Image
from torch import Tensor, nn

from vitreous.data.image import load_image
from vitreous.data.pictures import Picture
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.maps.clusters import likeness
from vitreous.maps.explaining import Plan, explain_image
from vitreous.maps.explanation import Explanation
from vitreous.maps.target import Target
from vitreous.training.model_folder import TrainedModel, data_of

HIDDEN_WITH = {"pixels": "black", "normalised": "grey"}
Pictured = str | Image.Image | Tensor


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
    return replace(item, facts=describe(trained.name, item, plan))


def explain_with(
    trained: TrainedModel, image: Pictured, *, target: Target | int | None = None, plan: Plan
) -> Explanation:
    """A file, a picture, or a normalised input (3, height, width)."""
    preprocess = trained.preprocess
    if isinstance(image, Tensor):
        seen, preprocess = as_picture(image, preprocess)
    else:
        seen = preprocess.picture(load_image(image) if isinstance(image, str) else image.convert("RGB"))
    name = image if isinstance(image, str) else "image"
    item = explain_image(
        trained.model, seen, preprocess=preprocess, classes=trained.classes, name=name, target=target, plan=plan
    )
    return replace(item, facts=describe(trained.name, item, plan))


def as_whole_picture(image: Pictured, preprocess: Preprocess) -> tuple[Image.Image, str]:
    """A picture that the model's own view will bring to its size, and its name."""
    if isinstance(image, str):
        return load_image(image), image
    return (as_picture(image, preprocess)[0] if isinstance(image, Tensor) else image.convert("RGB")), "image"


def as_picture(image: Tensor, preprocess: Preprocess) -> tuple[Image.Image, Preprocess]:
    """The picture of a normalised input; what a byte cannot hold is lost."""
    single = image[0] if image.ndim == 4 and len(image) == 1 else image
    if single.ndim != 3 or len(single) != 3:
        raise InputError(
            f"an image of shape {tuple(image.shape)} was given; one normalised input (3, height, width) is needed"
        )
    pixels = preprocess.denormalise(single.detach().float().cpu()).clamp(0, 1)
    seen = Image.fromarray((pixels * 255).round().to(torch.uint8).permute(1, 2, 0).numpy())
    return seen, replace(preprocess, size=(seen.height, seen.width))


def known(model: nn.Module) -> TrainedModel:
    """A model in memory with what timm's configuration tells about its pictures and classes."""
    if not hasattr(model, "pretrained_cfg"):
        raise InputError(
            f"{type(model).__name__} does not say how it wants its pictures; give preprocess=Preprocess(size=...) "
            "(vitreous.data.transforms) and classes=[...]"
        )
    return data_of(model, type(model).__name__)


def describe(name: str, item: Explanation, plan: Plan) -> dict[str, str]:
    """What the reader must know to repeat it, and to judge it."""
    facts = {"model": name, "picture": f"{item.picture.width} x {item.picture.height} pixels"}
    clusters = item.clusters
    if clusters is None:
        return facts
    count, rows, columns = clusters.maps.shape
    layer, where = clusters.layer, f"stage {clusters.layer.stage}"
    where += f", block {layer.block}" if layer.block else ""
    kind = "cluster" if layer.source == "clusters" else "attention"
    heads = "" if layer.source == "clusters" else f", {'mean of heads' if plan.head is None else f'head {plan.head}'}"
    facts |= {
        "layer": f"{where} ({layer.tap})",
        "maps": f"{count} {kind} maps of {columns} x {rows}{heads}",
        "clusters ranked by": clusters.ranking.replace("_", " "),
        "entropy of a flat map": f"{math.log(rows * columns):.2f} nats",
        "likeness of the maps": f"{likeness(clusters.maps):.2f}",
    }
    if clusters.ranking == "masking":
        how = "a blur" if plan.masking.fill == "blur" else HIDDEN_WITH[plan.masking.space]
        facts["hidden with"] = f"{how}, {plan.masking.interpolation}"
    return facts
