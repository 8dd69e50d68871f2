"""Detectors by name, on any backbone.

    model = build_detector("paca_tiny", "maskrcnn", classes=80)
    losses = model(images, targets)                # dict of tensors
    found = model.eval()(images, sizes=sizes)      # per image a dict of boxes, labels, scores and masks

`images` are normalised and padded at the bottom and the right; `targets` and `sizes` are described in `boxes.Detector`
and made by `data/joint.py`. All detectors take these arguments where they have the part: `channels` of the pyramid and
the head, `norm` ("gn", "bn" or None), `levels` (strides of the backbone's maps), `convs` before a prediction,
`anchor_sizes` (per level, in pixels) and `anchor_ratios` (height by width), `score_threshold`, `nms_threshold`,
`detections` per image. The defaults are the papers'.
"""

import inspect
from typing import Any

from torch import nn

from vitreous.errors import InputError
from vitreous.heads import check_arguments, heads_of
from vitreous.heads.boxes import Detector
from vitreous.heads.regions import paste_masks

__all__ = ["DETECTORS", "build_detector", "detector_arguments", "paste_masks"]

_FIRST_IN_HELP = ("maskrcnn", "fasterrcnn", "retinanet", "fcos", "ssd", "ssdlite", "atss", "sparsercnn")
DETECTORS = tuple(heads_of("detect", _FIRST_IN_HELP))
POSITIVE_ARGUMENTS = ("channels", "hidden", "proposals", "samples", "detections")


def build_detector(backbone: str | nn.Module, head: str, classes: int, **head_args: Any) -> Detector:
    """A detector for `classes` kinds of objects, the background not counted.

    Args:
        backbone: Name for `create_model`; or a model: one of ours, or one made with timm's `features_only=True`.
        head: One of DETECTORS.
        classes: How many.
        head_args: See `detector_arguments(head)`.
    """
    check_arguments(head, head_args, list(detector_arguments(head)))
    if classes < 1:
        raise InputError(f"classes={classes} given; a detector needs at least 1, without the background")
    for name, value in head_args.items():
        if name in POSITIVE_ARGUMENTS and not (isinstance(value, int) and value > 0):
            raise InputError(f"{name}={value!r} given; it must be a whole number, at least 1")
    return heads_of("detect")[head](backbone, classes, **head_args)


def detector_arguments(head: str) -> dict[str, Any]:
    """Names and defaults of what a detector takes."""
    known = heads_of("detect", _FIRST_IN_HELP)
    if head not in known:
        raise InputError(f"unknown detector {head!r}; accepted: {', '.join(known)}")
    fixed = getattr(known[head], "keywords", ())  # of a partial function
    parameters = inspect.signature(known[head]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in fixed}
