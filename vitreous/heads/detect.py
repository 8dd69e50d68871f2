"""Detectors by name, on any backbone.

    model = build_detector("paca_tiny", "maskrcnn", classes=80)
    losses = model(images, targets)                # dict of tensors
    found = model.eval()(images, sizes=sizes)      # one dict of boxes, labels, scores and masks an image

`images` are normalised and padded at the bottom and the right; `targets` and `sizes` are described in `boxes.Detector`
and made by `data/joint.py`. All detectors take these arguments where they have the part: `channels` of the pyramid and
the head, `norm` ("gn", "bn" or None), `levels` (strides of the backbone's maps), `convs` before a prediction,
`anchor_sizes` (per level, in pixels) and `anchor_ratios` (height by width), `score_threshold`, `nms_threshold`,
`detections` per image. The defaults are the papers'.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from vitreous.errors import InputError, nearest
from vitreous.heads.atss import atss
from vitreous.heads.boxes import Detector
from vitreous.heads.one_stage import fcos, retinanet
from vitreous.heads.regions import paste_masks
from vitreous.heads.sparse_rcnn import sparsercnn
from vitreous.heads.ssd import ssd
from vitreous.heads.two_stage import rcnn

__all__ = ["DETECTORS", "build_detector", "detector_arguments", "paste_masks"]

BUILDERS: dict[str, Callable[..., Detector]] = {
    "maskrcnn": partial(rcnn, masks=True),
    "fasterrcnn": partial(rcnn, masks=False),
    "retinanet": retinanet,
    "fcos": fcos,
    "ssd": partial(ssd, lite=False),
    "ssdlite": partial(ssd, lite=True),
    "atss": atss,
    "sparsercnn": sparsercnn,
}
DETECTORS = tuple(BUILDERS)


def build_detector(backbone: str | nn.Module, head: str, classes: int, **head_args: Any) -> Detector:
    """A detector for `classes` kinds of objects, the background not counted.

    Args:
        backbone: Name for `create_model`; or a model: one of ours, or one made with timm's `features_only=True`.
        head: One of DETECTORS.
        classes: How many.
        head_args: See `detector_arguments(head)`.
    """
    known = detector_arguments(head)
    for name in head_args:
        if name not in known:
            raise InputError(
                f"unknown argument {name!r} of {head}; nearest: {nearest(name, list(known))}; all: {', '.join(known)}"
            )
    if classes < 1:
        raise InputError(f"classes={classes} given; a detector needs at least 1, without the background")
    for name, value in head_args.items():
        if name in ("channels", "hidden", "proposals", "samples", "detections") and not (
            isinstance(value, int) and value > 0
        ):
            raise InputError(f"{name}={value!r} given; it is a number of at least 1")
    return BUILDERS[head](backbone, classes, **head_args)


def detector_arguments(head: str) -> dict[str, Any]:
    """Names and defaults of what a detector takes."""
    if head not in BUILDERS:
        raise InputError(f"unknown detector {head!r}; accepted: {', '.join(DETECTORS)}")
    parameters = inspect.signature(BUILDERS[head]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("masks", "lite")}
