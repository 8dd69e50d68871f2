"""Image classifiers that are neither ours nor timm's: torchvision's, those of `transformers`, any module.

    weights = ResNet18_Weights.DEFAULT
    adapted(resnet18(weights=weights).eval(), weights)             # names of the classes come with the weights
    adapted(ViTForImageClassification.from_pretrained(...).eval(), AutoImageProcessor.from_pretrained(...))

What is said about pictures may be ours (`Preprocess`), timm's data configuration, torchvision's weights, their
transforms or a `Compose` of plain steps, or an image processor of `transformers`: it is read, not called, because
explaining needs to know size and colours.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.data.transforms import RESAMPLING, ChannelValues, Preprocess
from vitreous.errors import InputError
from vitreous.runs.trained_model import TrainedModel, number_names

ACCEPTED = (
    "vitreous.data.transforms.Preprocess(size=(height, width)), timm's data config, torchvision's weights or their "
    "transforms(), or an image processor of transformers"
)
RESIZING, CROPPING = ("Resize", "ResizeKeepRatio"), ("CenterCrop", "CenterCropOrPad")
CONVERTING = ("ToTensor", "MaybeToTensor", "PILToTensor", "MaybePILToTensor", "ToImage", "ConvertImageDtype", "ToDtype")


class LogitsOnly(nn.Module):
    """Images (B, 3, H, W) -> (B, K), of a model that answers with an object around its logits."""

    def __init__(self, model: nn.Module, size: tuple[int, int]) -> None:
        super().__init__()
        self.model, self.size = model, size
        self.train(model.training)

    def forward(self, images: Tensor) -> Tensor:
        name = getattr(self.model, "main_input_name", None)
        return logits_of(self.model(images) if name is None else self.model(**{name: images}))


def logits_of(output: Any) -> Tensor:
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    found = found[0] if isinstance(found, list | tuple) and found else found
    if not isinstance(found, Tensor) or found.ndim != 2:
        given = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise InputError(f"the model returns {given}; a classifier gives (B, classes), or an object with such logits")
    return found


def adapted(model: nn.Module, preprocess: Any, classes: Sequence[str] | None = None) -> TrainedModel:
    """A classifier with what is said about its pictures; names of classes as given, or as its makers say."""
    read = read_preprocess(preprocess, type(model).__name__)
    wrapped = LogitsOnly(model, read.size)
    if classes is None:
        labels = getattr(getattr(model, "config", None), "id2label", None)
        meta = getattr(preprocess, "meta", None)
        if isinstance(labels, Mapping) and labels:
            classes = [str(labels[key]) for key in sorted(labels, key=int)]
        elif isinstance(meta, Mapping) and "categories" in meta:
            classes = meta["categories"]
        else:
            classes = number_names(count_classes(wrapped, read))
    return TrainedModel(wrapped, type(model).__name__, "classify", tuple(classes), read)


def count_classes(model: nn.Module, preprocess: Preprocess) -> int:
    like = next(model.parameters(), torch.empty(0))
    if model.training:
        raise InputError("the model is in training mode, where its answers are random; call model.eval() first")
    with torch.no_grad():
        return model(torch.zeros(1, 3, *preprocess.size, device=like.device, dtype=like.dtype)).shape[1]


# ---- what is said about pictures ---------------------------------------------------------------------------------


def read_preprocess(given: Any, model: str = "the model") -> Preprocess:
    """Whatever tells how a model wants its pictures, as ours."""
    if isinstance(given, Preprocess):
        return given
    if given is None:
        raise InputError(f"{model} does not say how it wants its pictures; give preprocess=...: {ACCEPTED}")
    if isinstance(given, Mapping) and "input_size" in given:
        return from_timm(given)
    if hasattr(given, "image_mean") and hasattr(given, "size"):
        return from_processor(given)
    if hasattr(given, "transforms") and not isinstance(given.transforms, list):  # torchvision's weights
        return read_preprocess(given.transforms(), model)
    if hasattr(given, "crop_size") and hasattr(given, "resize_size"):  # their transforms
        return made(given.crop_size, given.resize_size, given.interpolation, given.mean, given.std)
    steps = getattr(given, "transforms", None)
    if isinstance(steps, list):
        return from_steps(steps)
    raise InputError(f"preprocess of the type {type(given).__name__} cannot be read; accepted: {ACCEPTED}")


def from_timm(given: Mapping[str, Any]) -> Preprocess:
    height, width = given["input_size"][-2:]
    return Preprocess(
        size=(height, width),
        crop_ratio=given.get("crop_pct") or 1.0,
        interpolation=given.get("interpolation") or "bicubic",
        mean=tuple(given["mean"]),
        std=tuple(given["std"]),
        squash=given.get("crop_mode") == "squash",
    )


def from_processor(given: Any) -> Preprocess:
    """Of an image processor of `transformers`."""
    factor = getattr(given, "rescale_factor", 1 / 255)
    if not getattr(given, "do_rescale", True) or abs(factor - 1 / 255) > 1e-6:
        raise InputError(f"an image processor with rescale_factor={factor} given; colours from 0 to 1 are needed")
    normalised = getattr(given, "do_normalize", True)
    mean, std = (given.image_mean, given.image_std) if normalised else ((0.0,) * 3, (1.0,) * 3)
    scaled, crop = dict(given.size), dict(getattr(given, "crop_size", None) or {})
    cropped = [crop["height"], crop["width"]] if getattr(given, "do_center_crop", False) and crop else None
    resample = getattr(given, "resample", None)
    if scaled.get("shortest_edge"):
        edge = scaled["shortest_edge"]
        part = getattr(given, "crop_pct", None)  # ConvNeXt: the size is that of the crop
        if cropped is None and part:
            return made([edge], [int(edge / part)], resample, mean, std)
        return made(cropped or [edge], [edge], resample, mean, std)
    if scaled.get("height") and scaled.get("width"):
        sides = [scaled["height"], scaled["width"]]
        return made(cropped or sides, sides, resample, mean, std)
    raise InputError(
        f"an image processor with size={scaled} given; one with height and width, or shortest_edge, is read"
    )


def from_steps(steps: Sequence[Any]) -> Preprocess:
    """Of a `Compose`: scaling, cropping, conversion and normalisation."""
    found: dict[str, Any] = {}
    for step in steps:
        kind = type(step).__name__
        if kind in RESIZING:
            found |= {"scaled": step.size, "interpolation": step.interpolation}
        elif kind in CROPPING:
            found["cropped"] = step.size
        elif kind == "Normalize":
            found |= {"mean": step.mean, "std": step.std}
        elif kind not in CONVERTING:
            raise InputError(
                f"preprocess has the step {kind}, which cannot be read; accepted steps: "
                f"{', '.join((*RESIZING, *CROPPING, *CONVERTING))} and Normalize. Or give {ACCEPTED}"
            )
    size = found.get("cropped", found.get("scaled"))
    if size is None:
        raise InputError("preprocess neither scales nor crops, so that the size of the images is unknown; add Resize")
    scaled, mean, std = found.get("scaled", size), found.get("mean", (0.0,) * 3), found.get("std", (1.0,) * 3)
    return made(size, scaled, found.get("interpolation"), mean, std)


def made(size: Any, scaled: Any, interpolation: Any, mean: Any, std: Any) -> Preprocess:
    """From the crop and what the picture is scaled to before: its shorter side, or both."""
    height, width = sides_of(size)
    given = [scaled] if isinstance(scaled, int) else [int(side) for side in scaled]
    if len(given) == 2 and height * given[1] != width * given[0]:
        raise InputError(f"pictures scaled to {given} and cropped to {height} x {width} cannot be read; leave one out")
    return Preprocess(
        size=(height, width),
        crop_ratio=min(1.0, (height if len(given) == 2 else min(height, width)) / given[0]),
        interpolation=interpolation_name(interpolation),
        mean=three(mean),
        std=three(std),
        squash=len(given) == 2,
    )


def three(values: Any) -> ChannelValues:
    """One number for each colour."""
    listed = torch.as_tensor(values, dtype=torch.float64).flatten().tolist()
    if len(listed) not in (1, 3):
        raise InputError(f"mean or std of {len(listed)} colours given; models of pictures with 3 are explained")
    red, green, blue = listed if len(listed) == 3 else listed * 3
    return red, green, blue


def sides_of(size: Any) -> tuple[int, int]:
    both = [size] if isinstance(size, int) else [int(side) for side in size]
    return both[0], both[-1]


def interpolation_name(given: Any) -> str:
    """Of torchvision's constant, Pillow's, or its number."""
    value = getattr(given, "value", given)
    for name, known in RESAMPLING.items():
        if value in (name, known, int(known)):
            return name
    return "bilinear"
